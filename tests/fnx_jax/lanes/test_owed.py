"""Pairs that the draft head takes in late are those that it would have taken in at once, and none goes astray."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from fnx_jax.engine.steps import ReuseError
from fnx_jax.lanes.owed import Owed
from fnx_jax.lanes.tiles import Block
from tests.fnx_jax.cases import Piece, page_table, plan, run
from tests.fnx_jax.lanes.slotted import drafted, held
from tests.fnx_jax.lanes.views import assert_same, lane_view, poison

ROWS = 170


@pytest.fixture(scope="module")
def sequences():
    """One a lane."""
    return np.random.default_rng(11).integers(0, 128, (3, ROWS))


@pytest.fixture(scope="module")
def whole(steps, sequences):
    """Every lane's state after ROWS rows that ran in blocks which take in their own pairs."""
    views = []
    for lane, ids in enumerate(sequences):
        assert not steps.programs.owes(max(steps.heights))
        steps.round(plan(steps, [Piece(lane, ids, 0, ROWS)]))
        views.append(lane_view(steps, lane, ROWS))
    return views


@pytest.fixture
def absorbed(steps, monkeypatch):
    """Counts calls by which the head takes in what is owed."""
    calls, absorb = [], steps.programs.absorb

    def counted(*arguments):
        calls.append(arguments)
        return absorb(*arguments)

    monkeypatch.setattr(steps, "programs", replace(steps.programs, absorb=counted))
    return calls


def test_rows_one_by_one(steps, sequences, whole, absorbed):
    poison(steps)
    for row in range(ROWS):
        run(steps, [Piece(lane, ids, row, row + 1) for lane, ids in enumerate(sequences)])
    assert len(absorbed) < ROWS / 4  # several rows at once, or there were no point in it
    for lane, view in enumerate(whole):
        assert_same(lane_view(steps, lane, ROWS), view)


def test_windows_of_drafts_and_a_neighbour_that_stands_still(steps, sequences, whole, absorbed):
    poison(steps)
    run(steps, [Piece(1, sequences[1], 0, 9)])
    drafted(steps, 0, sequences[0], ROWS - 1)
    run(steps, [Piece(0, sequences[0], ROWS - 1, ROWS)])
    assert absorbed
    assert_same(lane_view(steps, 0, ROWS), whole[0])
    run(steps, [Piece(1, sequences[1], 9, 20)])
    steps.round(plan(steps, [Piece(1, sequences[1], 20, ROWS)]))
    assert_same(lane_view(steps, 1, ROWS), whole[1])


@pytest.mark.parametrize("start", [1, 2, 3, 17, 21])
def test_a_block_that_takes_in_its_own_pairs_finds_the_earlier_ones(start, steps, sequences, whole):
    poison(steps)
    run(steps, [Piece(0, sequences[0], 0, start)])
    steps.round(plan(steps, [Piece(0, sequences[0], start, start + 3), Piece(2, sequences[2], 0, ROWS)]))
    steps.round(plan(steps, [Piece(0, sequences[0], start + 3, ROWS)]))
    for lane in (0, 2):
        assert_same(lane_view(steps, lane, ROWS), whole[lane])


def test_a_new_stream_owes_nothing_of_the_one_before(steps, sequences):
    run(steps, [Piece(0, sequences[0], 0, 30)])
    poison(steps)
    run(steps, [Piece(0, sequences[1], 0, 3)])
    steps.settle()
    plane = steps.device.family.draft_plane(steps.state.cache, steps.device.config)
    key_SD = np.asarray(plane.key)[page_table(steps)[0, 0]]
    assert not np.isnan(key_SD[:2]).any() and np.isnan(key_SD[2:]).all()


def test_a_kept_state_has_its_pairs(steps, sequences, absorbed):
    run(steps, [Piece(0, sequences[0], 0, 21)])
    steps.keep(0, 21, 0)
    assert len(absorbed) == 2
    run(steps, [Piece(0, sequences[0], 21, 22)])
    steps.copy_page(0, 1)
    assert len(absorbed) == 3


def failing(params, plane, *rest):
    """A program that fails once it has taken over the head's memory."""
    for leaf in jax.tree.leaves(plane):
        leaf.delete()
    raise RuntimeError("no room on the device")


def test_a_failure_before_a_keep_loses_the_heads_memory_alone(steps, sequences, monkeypatch):
    run(steps, [Piece(0, sequences[0], 0, 21)])
    steps.keep(0, 21, 0)
    kept = held(steps, 0)
    run(steps, [Piece(0, sequences[0], 21, 24)])
    with monkeypatch.context() as patch:
        patch.setattr(steps, "programs", replace(steps.programs, absorb=failing))
        with pytest.raises(ReuseError, match="no room on the device"):
            steps.keep(0, 24, 1)
    plane = steps.device.family.draft_plane(steps.state.cache, steps.device.config)
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(plane))
    assert held(steps, 0) == kept
    found = run(steps, [Piece(0, sequences[0], 24, 30)])
    run(steps, [Piece(0, sequences[0], 0, 24)])
    assert found.tobytes() == run(steps, [Piece(0, sequences[0], 24, 30)]).tobytes()


def test_a_failure_in_a_round_empties_the_lanes(steps, sequences, monkeypatch):
    run(steps, [Piece(0, sequences[0], 0, 16)])
    run(steps, [Piece(0, sequences[0], 16, 31)])
    monkeypatch.setattr(steps, "programs", replace(steps.programs, absorb=failing))
    with pytest.raises(RuntimeError, match="no room on the device"):
        run(steps, [Piece(0, sequences[0], 31, 40)])
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(steps.state))
    run(steps, [Piece(0, sequences[0], 0, 16)])  # nothing is owed of the rows that are gone


def begun(owed, steps, ids, start, stop, absorbs=False):
    """Rows of lane 0 that are about to run, and then have."""
    planned = plan(steps, [Piece(0, ids, start, stop)])
    block = Block(0, stop - start, 16, ())
    due = owed.begin(planned, block, absorbs)
    owed.add(planned, block)
    return due


def taken(owed, heights=(16,)):
    """Positions and tokens of lane 0, and the heights of the blocks."""
    blocks = list(owed.take(heights))
    position = [int(p) for rows in blocks for p in rows.places.position_B[rows.places.live_B]]
    return position, [len(rows.token_B) for rows in blocks]


def test_rows_are_due_before_their_streams_are_overwritten(steps, sequences):
    owed, ids = Owed(ring=32), sequences[0]
    assert not begun(owed, steps, ids, 0, 16)
    assert not begun(owed, steps, ids, 16, 32)
    assert begun(owed, steps, ids, 32, 33)  # position 32 takes the place of position 0, whose streams pair 1 needs
    assert taken(owed)[0] == [*range(1, 33)]
    assert taken(owed)[0] == []


def test_rejected_rows_are_not_owed(steps, sequences):
    owed, ids = Owed(ring=32), sequences[0]
    begun(owed, steps, ids, 0, 8)
    assert not begun(owed, steps, ids, 5, 6)
    owed.cut(0, 6)
    assert taken(owed)[0] == [1, 2, 3, 4, 5]


def test_a_block_that_absorbs_waits_for_what_is_owed(steps, sequences):
    owed, ids = Owed(ring=32), sequences[0]
    assert not begun(owed, steps, ids, 0, 2, absorbs=True)
    assert begun(owed, steps, ids, 2, 3, absorbs=True)


def test_rows_are_taken_in_the_tallest_block_that_they_half_fill(steps, sequences):
    owed, ids = Owed(ring=512), sequences[0]
    for start in range(0, 160, 16):
        begun(owed, steps, ids, start, start + 16)
    position, heights = taken(owed, (16, 256))
    assert position == [*range(1, 160)] and heights == [256]
