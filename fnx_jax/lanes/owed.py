"""Host side: rows that ran, but whose pairs the draft head has yet to take in: many rows at once cost little more than
one, and nobody reads a pair before its lane drafts or is kept.

A pair needs the streams of the row before it, which the ring holds for a while. Read next: rounds.py.
"""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from fnx_jax.engine.steps import RoundPlan
from fnx_jax.families.rows import Rows
from fnx_jax.lanes.tiles import Block, height_for
from pallas_kernels.gated_delta import RowPlaces

Pair = tuple[int, int]
"""A row's position and its token."""


class Owed:
    """Pairs to take in, by lane. ring: rows whose streams are held.

    pages_LP: the page table of the newest round, by which pairs are stored.
    """

    def __init__(self, ring: int):
        self.pages_LP = np.zeros((0, 0), np.int32)
        self._ring = ring
        self._pairs: dict[int, list[Pair]] = {}

    def cut(self, lane: int, position: int) -> None:
        """Forgets a lane's rows from a position on: they were rejected, or run again."""
        pairs = self._pairs.get(lane)
        while pairs and pairs[-1][0] >= position:
            pairs.pop()

    def clear(self) -> None:
        """Forgets all."""
        self._pairs.clear()

    def begin(self, plan: RoundPlan, block: Block, absorbs: bool) -> bool:
        """Takes note that a block is about to run; whether what is owed must be taken in before it.

        absorbs: the block takes in its own pairs, which build on their lanes' earlier ones.
        """
        self.pages_LP = plan.pages_LP.astype(np.int32)
        if not self._pairs:
            return False
        first, last = {}, {}
        for lane, position, _ in _live_rows(plan, block):
            first.setdefault(lane, position)
            last[lane] = position
        due = False
        for lane in first:
            self.cut(lane, first[lane])
            if pairs := self._pairs.get(lane):
                due |= absorbs or pairs[0][0] - 1 <= last[lane] - self._ring
        return due

    def add(self, plan: RoundPlan, block: Block) -> None:
        """Owes the pairs of a block that ran; a lane's row 0 completes none."""
        for lane, position, token in _live_rows(plan, block):
            if position:
                self._pairs.setdefault(lane, []).append((position, token))

    def take(self, heights: Sequence[int], lanes: Collection[int] | None = None) -> Iterator[Rows]:
        """Hands out what some lanes owe, None: all, in blocks of `heights`, ascending; it is owed no longer."""
        chosen = [lane for lane in sorted(self._pairs) if lanes is None or lane in lanes]
        owed = [(lane, *pair) for lane in chosen for pair in self._pairs.pop(lane)]
        while owed:
            height = height_for(len(owed), heights)
            block, owed = owed[:height], owed[height:]
            yield _rows(block, height)


def _live_rows(plan: RoundPlan, block: Block) -> Iterator[tuple[int, int, int]]:
    """Lane, position and token of a block's rows."""
    rows = slice(block.start, block.start + block.live)
    return zip(*(values[rows].tolist() for values in (plan.lane_B, plan.position_B, plan.token_B)), strict=True)


def _rows(pairs: list[tuple[int, int, int]], height: int) -> Rows:
    lane_B, position_B, token_B = (np.zeros(height, np.int32) for _ in range(3))
    lane_B[: len(pairs)], position_B[: len(pairs)], token_B[: len(pairs)] = zip(*pairs, strict=True)
    places = RowPlaces(
        lane_B=lane_B,
        position_B=position_B,
        live_B=np.arange(height) < len(pairs),
        speculative_B=np.zeros(height, bool),
    )
    return Rows(token_B=token_B, places=places, ngram_BLE=np.zeros((height, 0, 0), np.float32))
