"""Host side: one process of a server on this machine, started, watched and ended by a script."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SERVE = (sys.executable, "-m", "fnx_jax.serve")
STOP_S = 10.0
LOG_CHARS = 2000
_READY = re.compile(r"^Ready: .* at (http://\S+)/v1,", re.MULTILINE)


class StartError(RuntimeError):
    """The process does not serve; the message holds the end of its log."""


class ServerProcess:
    """A process of `python -m fnx_jax.serve`, or of any command that says `Ready` as that does.

    Args: command: words. log: file for what it prints.
    process: to be watched and signalled.
    """

    def __init__(self, command: Sequence[str], log: Path):
        self._log = log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def log(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(errors="replace")

    def url(self) -> str | None:
        """Where it serves, up to and without /v1; None until it does."""
        ready = _READY.search(self.log())
        return ready[1] if ready else None

    def wait_ready(self, timeout_s: float) -> str:
        """Waits until it serves; returns its URL. Raises StartError where it ends before, or takes longer."""
        end_s = time.monotonic() + timeout_s
        while not (url := self.url()):
            if (code := self.process.poll()) is not None:
                raise StartError(f"the server left with code {code} before it was ready; its log ends:\n{self.end()}")
            if time.monotonic() > end_s:
                raise StartError(f"the server is not ready after {timeout_s:g} s; its log ends:\n{self.end()}")
            time.sleep(0.1)
        return url

    def end(self) -> str:
        """The last characters of its log."""
        return self.log()[-LOG_CHARS:].strip() or "(nothing was printed)"

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Asks it to end in order, and kills it where that takes longer."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Kills it where it is still there."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Lets a stop signal unwind this process, as Ctrl-C does, so that servers are ended. On the main thread."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
