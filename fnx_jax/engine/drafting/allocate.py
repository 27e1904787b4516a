"""Host side: how many drafts of which lanes make the most tokens per millisecond. Read next: tiling.py, policy.py."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fnx_jax.engine.drafting.settings import WINDOW_ROWS
from fnx_jax.engine.drafting.tiling import Tiling, tilings

LEAST = 0.01
"""A draft that lands less often than this is not worth the thought."""


@dataclass(frozen=True)
class Chain:
    """Chances that a lane's next drafts land, each where those before it did.

    head: the head makes them. fixed: drafts that are tested whatever they cost, before these.
    """

    chances: Sequence[float] = ()
    head: bool = True
    fixed: int = 0


@dataclass(frozen=True)
class Share:
    """Drafts by chain without the fixed ones, what a round with them is expected to commit and to take.

    order: of the chains' windows, so that none crosses the border of a tile.
    """

    counts: tuple[int, ...]
    order: tuple[int, ...]
    tokens: float
    ms: float

    @property
    def rate(self) -> float:
        """Tokens per millisecond."""
        return self.tokens / self.ms


Price = Callable[[int, int, int], float]
"""Milliseconds of a round from its drafts, the lanes that the head drafts for, and the longest of its chains."""


def allocate(chains: Sequence[Chain], price: Price, spare_ms: float = math.inf) -> tuple[Share, Share]:
    """Adds drafts one by one, the likeliest to land first, and keeps the number with the best rate.

    Windows may not cross a tile's border: for each number of tiles, all but the last are filled, the last as it pays.

    Args: chains: one for each lane of the round; each commits one token beside its drafts.
        spare_ms: that it may take longer than without drafts.
    Returns: the best, which may be without drafts, and the one without.
    """
    search = _Search(chains, price, spare_ms)
    for tiling in tilings([sum(_reaches(chain)) for chain in chains], [1 + chain.fixed for chain in chains]):
        if not search.fill(tiling):
            break  # what does not fill so many tiles will not fill more of them
    search.level()
    return search.best, search.plain


class _Search:
    def __init__(self, chains: Sequence[Chain], price: Price, spare_ms: float):
        self._chains, self._price = chains, price
        self._fixed = sum(chain.fixed for chain in chains)
        entries = [(reach, lane) for lane, chain in enumerate(chains) for reach in _reaches(chain)]
        self._entries = sorted(entries, key=lambda entry: -entry[0])  # stable: of equals the oldest lane's
        self._none: tuple[int, ...] = (0,) * len(chains)
        self.plain = self.best = Share(
            self._none, tuple(range(len(chains))), float(len(chains) + self._fixed), price(self._fixed, 0, 0)
        )
        self._most_ms = self.plain.ms + spare_ms

    def level(self) -> None:
        """Tries the best tiling with chains as even as may be: the longest decides how many steps the head takes."""
        drafted = sum(count > 0 for count in self.best.counts)
        if drafted > 1:
            self.fill(self._tiling, -(-sum(self.best.counts) // drafted))

    def fill(self, tiling: Tiling, longest: int = WINDOW_ROWS) -> bool:
        """Takes the best of one tiling; whether it is better than what was known, or needs no drafts to be filled."""
        before, counts, rooms = self.best, list(self._none), list(tiling.rooms)
        tokens, heads, deepest, end = self.plain.tokens, 0, 0, tiling.last
        for last in (False, True) if end else (True,):
            for reach, lane in self._entries:
                tile = tiling.tile_of[lane]
                if not rooms[tile] or (tile == end) is not last or counts[lane] >= longest:
                    continue
                rooms[tile] -= 1
                counts[lane] += 1
                tokens += reach
                if self._chains[lane].head:
                    heads += counts[lane] == 1
                    deepest = max(deepest, counts[lane])
                if last:
                    self._keep(counts, tiling, tokens, heads, deepest)
            if not last:
                if any(rooms[:end]):
                    return False
                self._keep(counts, tiling, tokens, heads, deepest)
        return self.best is not before or not any(tiling.rooms[:end])

    def _keep(self, counts: Sequence[int], tiling: Tiling, tokens: float, heads: int, deepest: int) -> None:
        ms = self._price(self._fixed + sum(counts), heads, deepest)
        if ms <= self._most_ms and tokens * self.best.ms > self.best.tokens * ms:
            self.best, self._tiling = Share(tuple(counts), tiling.order, tokens, ms), tiling


def _reaches(chain: Chain) -> list[float]:
    reached, reach = [], 1.0
    for chance in chain.chances[: WINDOW_ROWS - 1 - chain.fixed]:
        reach *= chance
        if reach < LEAST:
            break
        reached.append(reach)
    return reached
