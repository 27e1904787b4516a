"""Host side: how many drafts of which lanes make the most tokens per millisecond. Read next: policy.py."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEAST = 0.01
"""A draft that lands less often than this is not worth the thought."""


@dataclass(frozen=True)
class Chain:
    """Chances that a lane's next drafts land, each where those before it did. head: the head makes them."""

    chances: Sequence[float]
    head: bool = True


@dataclass(frozen=True)
class Share:
    """Drafts by chain, what a round with them is expected to commit and to take."""

    counts: tuple[int, ...]
    tokens: float
    ms: float

    @property
    def rate(self) -> float:
        """Tokens per millisecond."""
        return self.tokens / self.ms


Price = Callable[[int, int, int], float]
"""Milliseconds of a round from its drafts, the lanes that the head drafts for, and the longest of its chains."""


def allocate(lanes: int, chains: Sequence[Chain], price: Price) -> tuple[Share, Share]:
    """Adds drafts one by one, the likeliest to land first, and keeps the number with the best rate.

    Args: lanes: of the round; each commits one token beside its drafts.
    Returns: the best, which may be without drafts, and the one without.
    """
    counts, heads, deepest, tokens = [0] * len(chains), 0, 0, float(lanes)
    plain = best = Share(tuple(counts), tokens, price(0, 0, 0))
    for drafts, (reach, index) in enumerate(_by_reach(chains), 1):
        counts[index] += 1
        tokens += reach
        if chains[index].head:
            heads += counts[index] == 1
            deepest = max(deepest, counts[index])
        ms = price(drafts, heads, deepest)
        if tokens * best.ms > best.tokens * ms:
            best = Share(tuple(counts), tokens, ms)
    return best, plain


def _by_reach(chains: Sequence[Chain]) -> list[tuple[float, int]]:
    reached = []
    for index, chain in enumerate(chains):
        reach = 1.0
        for chance in chain.chances:
            reach *= chance
            if reach < LEAST:
                break
            reached.append((reach, index))
    return sorted(reached, key=lambda entry: -entry[0])  # stable: within a chain the order stays, of equals the oldest
