"""A plan is cut into blocks in order, each as tall as its rows are worth; a block's tiles are those of the plan."""

import numpy as np
import pytest

from fnx_jax.engine.steps import DraftPlan, DraftRow, Draw, RoundPlan
from fnx_jax.lanes.tiles import blocks, chain_rows, cut, cut_drafts, draw_params, padded


def plan(rows: int) -> RoundPlan:
    """Rows of one lane, the last one drawn."""
    row = np.arange(rows, dtype=np.int32)
    return RoundPlan(
        token_B=row,
        lane_B=np.zeros_like(row),
        position_B=row,
        speculative_B=np.zeros(rows, bool),
        history_BN=np.zeros((rows, 2), np.int32),
        pages_LP=np.zeros((1, 1), np.int32),
        draws=(Draw(row=rows - 1, position=rows, seed=0),),
    )


@pytest.mark.parametrize(
    ("rows", "heights", "wanted"),
    [
        (1, (16,), [16]),
        (40, (16,), [16, 16, 16]),
        (128, (16, 256), [16] * 8),
        (129, (16, 256), [256]),
        (300, (16, 256), [256, 16, 16, 16]),
        (512, (16, 256), [256, 256]),
        (40, (16, 32), [32, 16]),
    ],
)
def test_blocks_are_tall_where_rows_fill_them(rows, heights, wanted):
    found = list(blocks(plan(rows), heights))
    assert [block.height for block in found] == wanted
    assert [tile for block in found for tile in block.tiles] == list(cut(plan(rows)))
    assert sum(block.live for block in found) == rows
    taken = np.concatenate([padded(plan(rows).token_B, block)[: block.live] for block in found])
    assert np.array_equal(taken, np.arange(rows))


def test_a_draw_stays_with_its_tile():
    *_, last = blocks(plan(300), (16, 256))
    assert [bool(tile.draws) for tile in last.tiles] == [True]
    assert last.tiles[-1].place(299) == 11


def test_more_lanes_than_a_tile_holds_draft_in_several():
    rows = tuple(DraftRow(lane, 100 + lane, 7, Draw(lane, 102 + lane, seed=lane), 1 + lane % 3) for lane in range(20))
    plan = DraftPlan(rows, np.zeros((20, 1), np.int32))
    first, second = cut_drafts(plan)
    assert (first.live, second.live) == (16, 4)
    chains, draws = chain_rows(plan, second), draw_params(second)
    assert chains.lane_B[:4].tolist() == [16, 17, 18, 19] and chains.position_B[3] == 119
    assert draws.position_B[:4].tolist() == [118, 119, 120, 121]
    assert chains.depth_B.tolist() == [2, 3, 1, 2] + [0] * 12  # padding wants nothing
