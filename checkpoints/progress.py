"""Host side: how far a long read is: a bar on a terminal where tqdm is installed, else a line every few seconds."""

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_LINE_EVERY_S = 5.0


@contextmanager
def byte_progress(total_bytes: int, what: str, stream: TextIO | None = None) -> Iterator[Callable[..., None]]:
    """Gives a function that is told how many bytes more are done.

    Told `again=True`, it counts bytes that an earlier run did: they are done, but say nothing about the rate.

    Args:
      total_bytes: of the whole work. what: the name of this phase. stream: where to write, sys.stderr by default.
    """
    to = stream if stream is not None else sys.stderr
    tqdm = _tqdm() if to.isatty() else None
    if tqdm is not None:
        with tqdm(total=total_bytes, desc=what, unit="B", unit_scale=True, unit_divisor=1024, file=to) as bar:
            yield lambda nbytes, again=False: _again(bar, nbytes) if again else bar.update(nbytes)
        return
    lines = _Lines(total_bytes, what, to)
    yield lines.advance
    lines.write()


def _again(bar: Any, nbytes: int) -> None:
    bar.initial += nbytes
    bar.update(nbytes)


class _Lines:
    """Plain lines with a rate and what remains; the last one is written when the work is done."""

    def __init__(self, total_bytes: int, what: str, stream: TextIO):
        self._total, self._what, self._stream = total_bytes, what, stream
        self._done = self._again = 0
        self._start = self._last = time.monotonic()

    def advance(self, nbytes: int, again: bool = False) -> None:
        self._done += nbytes
        self._again += nbytes if again else 0
        if time.monotonic() - self._last >= _LINE_EVERY_S:
            self.write()

    def write(self) -> None:
        self._last = time.monotonic()
        rate = (self._done - self._again) / max(self._last - self._start, 1e-9)
        gib, total = self._done / 2**30, self._total / 2**30
        rest_s = (self._total - self._done) / rate if rate else 0
        left = f", {int(rest_s) // 60}:{int(rest_s) % 60:02} left" if rest_s >= 1 else ""
        line = f"{self._what}: {gib:.2f} of {total:.2f} GiB, {_per_second(rate)}{left}"
        print(line, file=self._stream, flush=True)


def _per_second(rate: float) -> str:
    return f"{rate / 2**20:.0f} MiB/s" if rate >= 10 << 20 else f"{rate / 2**10:.0f} KiB/s"


def _tqdm() -> Callable | None:
    """tqdm is optional: it comes with the server's packages."""
    try:
        return importlib.import_module("tqdm").tqdm
    except ImportError:
        return None
