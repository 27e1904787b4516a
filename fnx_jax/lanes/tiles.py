"""Host side: from a round's plan to blocks of rows, tiles of sixteen, and the arrays that draw them. NumPy only.

Every array is made afresh: a buffer handed to the device is never written again.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fnx_jax.engine.steps import DraftPlan, Draw, RoundPlan, Score
from fnx_jax.lanes.drafting import ChainRows
from fnx_jax.lanes.scaled import Adjustments, DrawParams
from pallas_kernels.row_tiles import ROW_TILE


@dataclass(frozen=True)
class Tile:
    """Rows [start, start + live) of the plan; draws and scores that fall among them."""

    start: int
    live: int
    draws: tuple[Draw, ...]
    scores: tuple[Score, ...]

    @property
    def height(self) -> int:
        """Rows with padding."""
        return ROW_TILE

    def place(self, row: int) -> int:
        """Where the plan's row lies in this tile."""
        return row - self.start


def cut(plan: RoundPlan) -> Iterator[Tile]:
    """Cuts a plan into tiles, in order."""
    draws, scores = defaultdict(list), defaultdict(list)
    for draw in plan.draws:
        draws[draw.row // ROW_TILE].append(draw)
    for score in plan.scores:
        scores[score.row // ROW_TILE].append(score)
    for tile in range(-(-len(plan.token_B) // ROW_TILE)):
        start = tile * ROW_TILE
        live = min(ROW_TILE, len(plan.token_B) - start)
        yield Tile(start, live, tuple(draws[tile]), tuple(scores[tile]))


def cut_drafts(plan: DraftPlan) -> Iterator[Tile]:
    """Cuts the rows of a plan of drafts into tiles, in order."""
    for start in range(0, len(plan.rows), ROW_TILE):
        rows = plan.rows[start : start + ROW_TILE]
        yield Tile(start, len(rows), tuple(row.draw for row in rows), ())


@dataclass(frozen=True)
class Block:
    """Rows that one program takes: [start, start + live) of the plan, filled up to `height`, a multiple of ROW_TILE."""

    start: int
    live: int
    height: int
    tiles: tuple[Tile, ...]


def blocks(plan: RoundPlan, heights: Sequence[int]) -> Iterator[Block]:
    """Cuts a plan into blocks, in order, as tall as `height_for` says of the rows left."""
    left = list(cut(plan))
    while left:
        start = left[0].start
        rows = len(plan.token_B) - start
        height = height_for(rows, heights)
        taken, left = left[: height // ROW_TILE], left[height // ROW_TILE :]
        yield Block(start, min(rows, height), height, tuple(taken))


def height_for(rows: int, heights: Sequence[int]) -> int:
    """The tallest of `heights` that so many rows fill by more than half, else the first.

    heights: ascending multiples of ROW_TILE, the first being ROW_TILE.
    """
    return max(height for height in heights if height == heights[0] or 2 * rows > height)


def padded(values: np.ndarray, block: Block | Tile) -> np.ndarray:
    """The part of a per-row array that a block or a tile takes, filled up with zeros."""
    part = values[block.start : block.start + block.live]
    out = np.zeros((block.height, *values.shape[1:]), values.dtype)
    out[: block.live] = part
    return out


def chain_rows(plan: DraftPlan, tile: Tile) -> ChainRows:
    """Where the chains of a tile start; padding wants no draft."""
    lane, position, token, depth = (np.zeros(ROW_TILE, np.int32) for _ in range(4))
    for b, row in enumerate(plan.rows[tile.start : tile.start + tile.live]):
        lane[b], position[b], token[b], depth[b] = row.lane, row.position, row.token, row.depth
    return ChainRows(lane, position, token, depth)


def draw_params(tile: Tile) -> DrawParams:
    """Parameters of a tile's draws; rows without one are greedy and their token is not read."""
    seed = np.zeros((ROW_TILE, 2), np.uint32)
    choice, position, top_k = (np.zeros(ROW_TILE, np.int32) for _ in range(3))
    temperature, min_p = np.zeros(ROW_TILE, np.float32), np.zeros(ROW_TILE, np.float32)
    top_p = np.ones(ROW_TILE, np.float32)
    for draw in tile.draws:
        b = tile.place(draw.row)
        seed[b] = draw.seed & 0xFFFFFFFF, (draw.seed >> 32) & 0xFFFFFFFF
        choice[b], position[b], top_k[b] = draw.choice, draw.position, draw.top_k
        temperature[b], top_p[b], min_p[b] = draw.temperature, draw.top_p, draw.min_p
    return DrawParams(seed, choice, position, temperature, top_k, top_p, min_p)


def is_adjusted(draw: Draw) -> bool:
    """Whether a draw changes logits before it filters them."""
    return draw.bias_V is not None or draw.counts_V is not None


def adjustments(tile: Tile, vocabulary: int) -> Adjustments:
    """Adjustments of a tile's draws; neutral in rows that ask for none."""
    bias = np.zeros((ROW_TILE, vocabulary), np.float32)
    counts, seen = np.zeros((ROW_TILE, vocabulary), np.int32), np.zeros((ROW_TILE, vocabulary), bool)
    presence, frequency = np.zeros(ROW_TILE, np.float32), np.zeros(ROW_TILE, np.float32)
    repetition = np.ones(ROW_TILE, np.float32)
    for draw in tile.draws:
        b = tile.place(draw.row)
        if draw.bias_V is not None:
            bias[b] = draw.bias_V
        if draw.counts_V is not None and draw.seen_V is not None:
            counts[b], seen[b] = draw.counts_V, draw.seen_V
            presence[b], frequency[b] = draw.presence_penalty, draw.frequency_penalty
            repetition[b] = draw.repetition_penalty
    return Adjustments(bias, counts, seen, presence, frequency, repetition)


def targets(tile: Tile, rows: Sequence[tuple[int, int]]) -> np.ndarray:
    """int32 [ROW_TILE]: target ids at the given (plan row, id) pairs, 0 elsewhere."""
    out = np.zeros(ROW_TILE, np.int32)
    for row, target in rows:
        out[tile.place(row)] = target
    return out
