"""Host side: where states go that leave the devices, and from where they come back: host memory, then files.

Read next: host.py, disk.py.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from fnx_jax.engine.prompt_cache.away import Away
from fnx_jax.engine.prompt_cache.disk import DiskChoice, DiskTier, Stored
from fnx_jax.engine.prompt_cache.host import HostTier

Copy = Callable[[], Away | None]
"""Copies a state from where it is; None where that failed or need not be."""


class Tiers:
    """host_bytes: memory of the host, 0 for none. disk: None for no files. returned: states that came back from memory.

    Raises: OSError as DiskTier.
    """

    def __init__(self, host_bytes: int, disk: DiskChoice | None):
        self.disk = None if disk is None else DiskTier(disk)
        self.host = HostTier(host_bytes, self._leave_host)
        self.returned = 0

    def __len__(self) -> int:
        return len(self.host) + (0 if self.disk is None else len(self.disk))

    def takes(self, nbytes: int) -> bool:
        """Whether a state of that size can be put anywhere."""
        return self.host.takes(nbytes) or (self.disk is not None and self.disk.takes(nbytes))

    def touch(self, tokens: np.ndarray) -> bool:
        """Whether a file has the state of these tokens; it is the newest then."""
        stored = None if self.disk is None else self.disk.at(tokens)
        if self.disk is not None and stored is not None:
            self.disk.touch(stored)
        return stored is not None

    def add(self, away: Away) -> None:
        """Takes a state in."""
        if self.host.takes(away.nbytes):
            self.host.add(away)
        else:
            self._leave_host(away)

    def find(self, tokens: np.ndarray, above: int) -> Away | Stored | None:
        """Returns the longest state of more than `above` tokens that `tokens` begins with; memory before files."""
        found = (self.host.find(tokens), None if self.disk is None else self.disk.find(tokens))
        longer = [state for state in found if state is not None and len(state.tokens) > above]
        return max(longer, key=lambda state: len(state.tokens), default=None)

    def fetch(self, found: Away | Stored, patient: bool) -> Away | None:
        """Returns what was found; a state in memory is taken out of it. None while a file is being read.

        patient: waits for it. Raises: StateFileError where the file is of no use, which is forgotten then.
        """
        if isinstance(found, Away):
            self.host.drop(found)
            return found
        assert self.disk is not None
        return self.disk.read(found, patient)

    def note_return(self, found: Away | Stored) -> None:
        """Counts a state that is on the devices again."""
        self.returned += isinstance(found, Away)
        self.touch(found.tokens)

    def close(self, others: Sequence[tuple[int, Copy]] | None) -> None:
        """Puts what is in memory into files, as far as their budget goes, and waits.

        others: more states, newer ones, the longest unused first: bytes of each and what copies it. None: only what is
        being written already is waited for.
        """
        if self.disk is None:
            return
        if others is not None:
            self._write_all(self.disk, others)
        self.disk.close()

    def _write_all(self, disk: DiskTier, others: Sequence[tuple[int, Copy]]) -> None:
        chosen, room = [], disk.choice.budget_bytes
        for nbytes, copy in reversed([*((away.nbytes, partial(_itself, away)) for away in self.host), *others]):
            room -= nbytes
            if room < 0:
                break
            chosen.append(copy)
        for copy in reversed(chosen):
            if (away := copy()) is not None:
                disk.add(away, patient=True)

    def _leave_host(self, away: Away) -> None:
        if self.disk is not None:
            self.disk.add(away)


def _itself(away: Away) -> Away:
    return away
