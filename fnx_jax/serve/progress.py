"""Host side: how far loading is: a bar on a terminal, a line every few seconds elsewhere. Read next: runner.py."""

import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from tqdm import tqdm


class Progress:
    """Shows phases of loading; may be called from any thread.

    Args: quiet: show nothing. stream: where to. every_s: seconds between lines where there is no terminal.
    """

    def __init__(
        self,
        quiet: bool = False,
        stream: TextIO | None = None,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._phase: str | None = None
        self._bar: tqdm | None = None
        self._begin_s = self._told_s = 0.0

    def __call__(self, phase: str, done_bytes: int = 0, total_bytes: int = 0) -> None:
        """Says that `done_bytes` of `total_bytes` of a phase are done; 0 of 0 where bytes mean nothing."""
        if self._quiet:
            return
        with self._lock:
            if phase != self._phase:
                self._open(phase, total_bytes)
            if self._bar is not None:
                self._bar.update(done_bytes - self._bar.n)
            elif done_bytes and (self._clock() - self._told_s >= self._every_s or done_bytes == total_bytes):
                self._tell(done_bytes, total_bytes)

    def close(self) -> None:
        """Ends the last phase."""
        with self._lock:
            self._open(None, 0)

    def _open(self, phase: str | None, total_bytes: int) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        self._phase, self._begin_s, self._told_s = phase, self._clock(), self._clock()
        if phase is not None and total_bytes and self._stream.isatty():
            self._bar = tqdm(
                total=total_bytes, desc=phase, unit="B", unit_scale=True, unit_divisor=1024, file=self._stream
            )
        elif phase is not None:
            print(phase, file=self._stream, flush=True)

    def _tell(self, done_bytes: int, total_bytes: int) -> None:
        self._told_s = self._clock()
        rate = done_bytes / max(self._told_s - self._begin_s, 1e-6)
        line = f"{self._phase}: {done_bytes / 2**30:.2f} of {total_bytes / 2**30:.2f} GiB, {rate / 2**30:.2f} GiB/s"
        print(line, file=self._stream, flush=True)
