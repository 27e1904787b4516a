"""Host side: kept states that had to leave the devices, in the host's memory, the longest unused leaving first.

Read next: tiers.py.
"""

from collections.abc import Callable, Iterator

import numpy as np

from fnx_jax.engine.prompt_cache.away import Away
from fnx_jax.engine.prompt_cache.radix import RadixTree


class HostTier:
    """States by their tokens, `budget_bytes` of them at most. leaving: given each that has to go for another."""

    def __init__(self, budget_bytes: int, leaving: Callable[[Away], None] = lambda away: None):
        self.budget_bytes, self.used_bytes = budget_bytes, 0
        self._leaving = leaving
        self._tree: RadixTree[Away] = RadixTree()
        self._oldest_first: dict[Away, None] = {}

    def __len__(self) -> int:
        return len(self._oldest_first)

    def __iter__(self) -> Iterator[Away]:
        """The longest unused first."""
        return iter(self._oldest_first)

    def takes(self, nbytes: int) -> bool:
        """Whether a state of that size can be put here at all."""
        return 0 < nbytes <= self.budget_bytes

    def add(self, away: Away) -> None:
        """Takes a state in, at the cost of older ones; one with the same tokens is replaced."""
        if (same := self._tree.get(away.tokens)) is not None:
            self.drop(same)
        while self.used_bytes + away.nbytes > self.budget_bytes:
            oldest = next(iter(self._oldest_first))
            self.drop(oldest)
            self._leaving(oldest)
        self._tree.insert(away.tokens, away)
        self._oldest_first[away] = None
        self.used_bytes += away.nbytes

    def find(self, tokens: np.ndarray) -> Away | None:
        """Returns the longest state that `tokens` begins with, itself included."""
        return self._tree.longest(tokens)

    def drop(self, away: Away) -> None:
        """Forgets a state."""
        self._tree.remove(away.tokens)
        del self._oldest_first[away]
        self.used_bytes -= away.nbytes
