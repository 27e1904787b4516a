"""Host side: kept states in files of a folder, the longest unused leaving first, and there again at the next start.

Files are written, read and removed by threads of this tier's own; what there is, and what has to go, is decided by the
one caller. Several processes may use a folder: each knows the files that it found at its start and those that it wrote,
names are never used twice, and a file that is gone is a state that is gone. Read next: folder.py, files.py.
"""

import contextlib
import logging
import os
import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fnx_jax.engine.prompt_cache.away import Away
from fnx_jax.engine.prompt_cache.files import StateFileError, most_bytes, read_state, write_state
from fnx_jax.engine.prompt_cache.folder import look_through
from fnx_jax.engine.prompt_cache.radix import RadixTree
from fnx_jax.engine.prompt_cache.status import DiskStatus

logger = logging.getLogger(__name__)
QUEUE_BYTES = 1 << 30
"""States that wait to be written, at most, though always one; beyond it none is taken."""


@dataclass(frozen=True)
class DiskChoice:
    """folder: of the files; made if it is missing. budget_bytes: of all files. fingerprint: what a state depends on."""

    folder: Path
    budget_bytes: int
    fingerprint: str


@dataclass(eq=False)
class Stored:
    """A state in a file. tokens: as in Entry. nbytes: of the file at most. writing, away: until it is written."""

    tokens: np.ndarray
    path: Path
    nbytes: int
    writing: Future[None] | None = None
    away: Away | None = None


class DiskTier:
    """States by their tokens, in files of `choice.budget_bytes` at most, those of other fingerprints not counted.

    Raises: OSError where the folder cannot be read or made.
    """

    def __init__(self, choice: DiskChoice):
        self.choice = choice
        self._used_bytes = self._written = self._read = self._lost = 0
        self._tree: RadixTree[Stored] = RadixTree()
        self._oldest_first: dict[Stored, None] = {}
        self._warned: set[str] = set()
        self._reading: tuple[Stored, Future[Away]] | None = None
        choice.folder.mkdir(0o700, parents=True, exist_ok=True)
        # Reads do not wait behind writes.
        self._writer = ThreadPoolExecutor(1, "fnx-state-writer")
        self._reader = ThreadPoolExecutor(1, "fnx-state-reader")
        self._open()

    def __len__(self) -> int:
        return len(self._oldest_first)

    def takes(self, nbytes: int) -> bool:
        """Whether a state of that size can be put here at all."""
        return 0 < nbytes <= self.choice.budget_bytes

    def add(self, away: Away, patient: bool = False) -> None:
        """Takes a state in, at the cost of older ones, and writes it meanwhile. patient: waits for room in the queue.

        One that is here already only becomes the newest; one that finds the queue full is lost.
        """
        self._settle()
        same, nbytes = self._tree.get(away.tokens), most_bytes(away)
        if same is not None:
            return self.touch(same)
        if not self.takes(nbytes) or not self._queue_takes(away, patient):
            self._lost += 1
            return
        while self._used_bytes + nbytes > self.choice.budget_bytes:
            self._drop(next(iter(self._oldest_first)))
        path = self.choice.folder / f"state-{secrets.token_hex(16)}.safetensors"
        stored = Stored(away.tokens, path, nbytes, away=away)
        stored.writing = self._writer.submit(self._write, stored)
        self._store(stored)

    def at(self, tokens: np.ndarray) -> Stored | None:
        """Returns the state of exactly these tokens, without a look at its file."""
        return self._tree.get(tokens)

    def find(self, tokens: np.ndarray) -> Stored | None:
        """Returns the longest state that `tokens` begins with, itself included."""
        self._settle()
        return self._tree.longest(tokens)

    def read(self, stored: Stored, patient: bool) -> Away | None:
        """Returns a state, from its file if it is written; it stays here. None while it is being read.

        At most one is being read or held by this: another's read takes its place. patient: waits for it.
        Raises: StateFileError where the file is gone or is not what was written; the state is forgotten then.
        """
        if stored.away is not None:
            return stored.away
        if self._reading is None or self._reading[0] is not stored:
            self._reading = stored, self._reader.submit(read_state, stored.path, self.choice.fingerprint)
        _, reading = self._reading
        if not reading.done() and not patient:
            return None
        self._reading = None
        try:
            away = reading.result()
            if not np.array_equal(away.tokens, stored.tokens):
                raise StateFileError(f"{stored.path}: other tokens than at the start")
        except Exception as error:
            self._forget(stored, "read", error)
            raise StateFileError(str(error)) from error
        self._read += 1
        return away

    def status(self) -> DiskStatus:
        """Returns the numbers as they are now."""
        return DiskStatus(len(self), self._used_bytes, self._written, self._read, self._lost)

    def touch(self, stored: Stored) -> None:
        """Notes that a state was used now, for the next start too."""
        self._oldest_first[stored] = self._oldest_first.pop(stored)
        self._writer.submit(_quietly, os.utime, stored.path)

    def close(self) -> None:
        """Waits until all is written. The tier is not used after it."""
        wait([stored.writing for stored in self._oldest_first if stored.writing is not None])
        self._settle()
        self._writer.shutdown()
        self._reader.shutdown()

    def _queue_takes(self, away: Away, patient: bool) -> bool:
        while queued := [stored.away.nbytes for stored in self._oldest_first if stored.away is not None]:
            if sum(queued) + away.nbytes <= QUEUE_BYTES:
                return True
            if not patient:
                return False
            wait([stored.writing for stored in self._oldest_first if stored.writing is not None][:1])
            self._settle()
        return True

    def _write(self, stored: Stored) -> None:
        """On the writer's thread. What was dropped while it waited is not written."""
        if (away := stored.away) is not None:
            write_state(stored.path, self.choice.fingerprint, away)

    def _settle(self) -> None:
        """Takes note of what was written meanwhile, or could not be."""
        for stored in [stored for stored in self._oldest_first if stored.writing is not None and stored.writing.done()]:
            assert stored.writing is not None
            error = stored.writing.exception()
            stored.writing = stored.away = None
            if error is None:
                self._written += 1
                self._warned.discard("written")
            else:
                self._forget(stored, "written", error)

    def _store(self, stored: Stored) -> None:
        self._tree.insert(stored.tokens, stored)
        self._oldest_first[stored] = None
        self._used_bytes += stored.nbytes

    def _drop(self, stored: Stored, unlink: bool = True) -> None:
        """Forgets a state and removes its file, once that is written."""
        self._tree.remove(stored.tokens)
        del self._oldest_first[stored]
        self._used_bytes -= stored.nbytes
        stored.away = None  # whatever still waits in the writer's queue holds no memory
        if unlink:
            self._writer.submit(_quietly, os.unlink, stored.path)

    def _forget(self, stored: Stored, what: str, error: BaseException) -> None:
        self._lost += 1
        # What failed for want of memory or of handles may be read at the next start.
        self._drop(stored, unlink=isinstance(error, StateFileError))
        self._warn(what, f"a kept state could not be {what}, and others perhaps not either: {error}")

    def _warn(self, kind: str, message: str) -> None:
        """Once for each kind; of writing once more where it has worked in between."""
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s", message)

    def _open(self) -> None:
        """Takes in what there is, as far as the budget goes."""
        found = look_through(self.choice.folder, self.choice.fingerprint)
        for path, about in found.states:
            if (same := self._tree.get(about.tokens)) is not None:
                self._drop(same)
            self._store(Stored(about.tokens, path, about.nbytes))
        while self._used_bytes > self.choice.budget_bytes:
            self._drop(next(iter(self._oldest_first)))
        for message in found.faults():
            logger.warning("%s: %s", self.choice.folder, message)


def _quietly(work: Callable[..., Any], *arguments: Any) -> None:
    with contextlib.suppress(OSError):
        work(*arguments)
