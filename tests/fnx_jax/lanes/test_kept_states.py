"""A kept state has one set of bytes whoever made it, and a lane that resumes from it goes on with the bits of row 0."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from fnx_jax.engine.steps import ReuseError
from fnx_jax.families.leaves import Leaf
from fnx_jax.lanes.kept_states import KeptSizes, default_budget, divide_budget, kept_sizes
from fnx_jax.lanes.slots import own_leaves
from fnx_jax.lanes.state import state_kinds, state_shapes
from tests.fnx_jax.cases import Piece, page_table, run
from tests.fnx_jax.lanes.slotted import drafted, held, resume, with_slots
from tests.fnx_jax.lanes.views import assert_same, lane_view, poison

ROWS = 75
CUTS = [1, 2, 3, 4, 5, 13, 16, 17, 29, 32, 47, 63, 64, 65, 74]
"""Around blocks of 4, tiles of 16, pages of 64 and the budget of the sparse selection, and in between."""


@pytest.fixture(scope="module")
def ids():
    """One sequence."""
    return np.random.default_rng(5).integers(0, 128, ROWS + 20)


@pytest.fixture(scope="module")
def whole(steps, ids):
    """Its logits and the lane's state after it, run from row 0 at once."""
    logits = run(steps, [Piece(0, ids, 0, ROWS)])
    return logits, lane_view(steps, 0, ROWS)


@pytest.mark.parametrize("length", [5, 29, 64, 66])
def test_kept_bytes_do_not_depend_on_who_made_them(length, steps, ids):
    poison(steps)
    run(steps, [Piece(0, ids, 0, length)])
    steps.keep(0, length, 0)
    wanted = held(steps, 0)
    for a in range(0, length, 7):
        run(steps, [Piece(1, ids, a, min(a + 7, length))])
    steps.keep(1, length, 1)
    drafted(steps, 2, ids, length)
    steps.keep(2, length, 2)
    assert held(steps, 1) == wanted and held(steps, 2) == wanted
    if length % steps.row_tile:  # a prompt's last row, told as a draft
        run(steps, [Piece(3, ids, 0, length + 1, drafts_from=length)])
        steps.keep(3, length, 1)
        assert held(steps, 1) == wanted


def test_states_that_were_walked_on_by_a_keep_had_drafts_in_them(steps, ids):
    """What the test above rests on: the drafted lane's committed state lies behind what is kept."""
    run(steps, [Piece(0, ids, 0, 20)])
    run(steps, [Piece(0, ids, 20, 27, drafts_from=21)])
    before = np.asarray(steps.state.cache.folded)[0]
    steps.keep(0, 26, 0)
    assert before == 21 and np.asarray(steps.state.cache.folded)[0] == 21  # the lane itself is left as it was
    steps.restore(0, 3)
    assert np.asarray(steps.state.cache.folded)[3] == 26


@pytest.mark.parametrize("cut", CUTS)
def test_a_lane_that_resumes_goes_on_as_from_row_0(cut, steps, ids, whole):
    poison(steps)
    run(steps, [Piece(0, ids, 0, cut)])
    steps.keep(0, cut, 1)
    # The lane it came from goes on with other tokens, as another conversation would.
    run(steps, [Piece(0, np.concatenate([ids[:cut], (ids[cut:] + 9) % 128]), cut, ROWS)])
    pages_LP = resume(steps, 1, source=0, target=2, length=cut)
    logits = run(steps, [Piece(2, ids, cut, ROWS)], pages_LP)
    assert np.array_equal(logits, whole[0][cut:])
    assert_same(lane_view(steps, 2, ROWS, pages_LP), whole[1])


def test_two_lanes_resume_from_one_state_and_do_not_meet(steps, ids):
    cut = 64
    other = np.concatenate([ids[:cut], (ids[cut:] + 3) % 128])
    run(steps, [Piece(1, other, 0, ROWS)])
    wanted = lane_view(steps, 1, ROWS)
    run(steps, [Piece(0, ids, 0, cut)])
    steps.keep(0, cut, 0)
    pages_LP = resume(steps, 0, source=0, target=2, length=cut)
    pages_LP[3] = resume(steps, 0, source=0, target=3, length=cut)[3]
    for at in range(cut, ROWS):
        run(steps, [Piece(2, ids, at, at + 1), Piece(3, other, at, at + 1)], pages_LP)
    assert_same(lane_view(steps, 3, ROWS, pages_LP), wanted)


def test_no_leaf_may_be_forgotten(steps, ids, whole):
    """The planted mistakes: each leaf in turn keeps what its lane held before, and is found out."""
    cut = 29
    run(steps, [Piece(0, ids, 0, cut)])
    steps.keep(0, cut, 0)
    kinds = jax.tree.leaves(state_kinds(steps.device.family, steps.state))
    own = [place for place, kind in enumerate(kinds) if kind is not Leaf.PAGES]
    assert len(own) == len(steps.kept.leaves) > 4
    for place in own:
        # The lane's own past is that of other tokens, and a row shorter.
        run(steps, [Piece(2, (ids + 1) % 128, 0, cut)])
        run(steps, [Piece(2, (ids + 1) % 128, 0, cut - 1)])
        past = np.asarray(jax.tree.leaves(steps.state)[place][2])
        pages_LP = resume(steps, 0, source=0, target=2, length=cut)
        flat, tree = jax.tree.flatten(steps.state)
        flat[place] = flat[place].at[2].set(past)
        steps.state = jax.tree.unflatten(tree, flat)
        logits = run(steps, [Piece(2, ids, cut, cut + 3)], pages_LP)
        found = lane_view(steps, 2, cut + 3, pages_LP)
        run(steps, [Piece(1, ids, 0, cut + 3)])
        wanted = lane_view(steps, 1, cut + 3)
        same = np.array_equal(logits, whole[0][cut : cut + 3])
        assert not same or any(found[n].tobytes() != wanted[n].tobytes() for n in wanted), place


def test_a_leaf_that_nobody_described_is_an_error(steps):
    cache = steps.state.cache
    longer = replace(steps.state, cache=replace(cache, ngram=(*cache.ngram, cache.folded)))
    described = SimpleNamespace(cache_kinds=lambda _: steps.device.family.cache_kinds(cache))
    assert len(own_leaves(described, steps.state)) == len(steps.kept.leaves)
    with pytest.raises(ValueError):
        own_leaves(described, longer)


@pytest.mark.parametrize("devices", [2, 4])
def test_ranks_keep_and_resume_what_one_device_does(devices, exact_model):
    ids = np.random.default_rng(6).integers(0, 128, 40)
    one, several = exact_model("four_ranks").steps, exact_model("four_ranks", devices).steps
    wanted = run(one, [Piece(0, ids, 0, 40)])
    with with_slots(several, 2):
        drafted(several, 0, ids, 21)
        several.keep(0, 21, 1)
        run(several, [Piece(0, (ids + 9) % 128, 0, 40)])
        drafted(several, 0, ids, 21)
        pages_LP = resume(several, 1, source=0, target=3, length=21)
        several.refill(several.spill(1, (0,)), 1, (0,))
        assert np.array_equal(run(several, [Piece(3, ids, 21, 40)], pages_LP), wanted[21:])


@pytest.mark.parametrize("cut", [29, 66])
def test_a_state_comes_back_from_the_host_as_it_went(cut, steps, ids, whole):
    run(steps, [Piece(0, ids, 0, cut)])
    steps.keep(0, cut, 0)
    pages_LP = page_table(steps)
    pages = tuple(int(page) for page in pages_LP[0, : -(-cut // steps.page)])
    away, wanted = steps.spill(0, pages), held(steps, 0)
    poison(steps)
    steps.kept.empty()
    target = tuple(int(page) for page in pages_LP[3, : len(pages)])
    steps.refill(away, 2, target)
    assert held(steps, 2) == wanted
    steps.restore(2, 3)
    assert np.array_equal(run(steps, [Piece(3, ids, cut, ROWS)]), whole[0][cut:])
    assert_same(lane_view(steps, 3, ROWS), whole[1])


def test_a_failed_keep_leaves_the_lanes_and_empties_the_slots(steps, ids, whole):
    run(steps, [Piece(0, ids, 0, 30)])
    steps.keep(0, 30, 0)
    kept = steps.kept
    working, kept._keep = kept._keep, lambda *arguments: 1 / 0
    try:
        with pytest.raises(ReuseError, match="ZeroDivisionError"):
            steps.keep(0, 30, 1)
    finally:
        kept._keep = working
    assert not any(np.asarray(leaf).any() for leaf in kept.leaves)
    assert np.array_equal(run(steps, [Piece(0, ids, 30, ROWS)]), whole[0][30:])


def test_a_failed_restore_leaves_the_lanes_unless_it_took_their_buffers(steps, ids, whole):
    def fails(state, *rest):
        raise MemoryError("no room")

    def takes(state, *rest):
        for leaf in jax.tree.leaves(state):
            leaf.delete()
        raise MemoryError("no room")

    run(steps, [Piece(0, ids, 0, 30)])
    working = steps.kept._restore
    try:
        steps.kept._restore = fails
        with pytest.raises(ReuseError, match="no room"):
            steps.restore(0, 1)
        assert np.array_equal(run(steps, [Piece(0, ids, 30, 40)]), whole[0][30:40])
        steps.kept._restore = takes
        with pytest.raises(MemoryError):
            steps.restore(0, 1)
    finally:
        steps.kept._restore = working
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(steps.state))


def test_without_slots_nothing_can_be_kept(exact_model):
    with pytest.raises(ReuseError, match="without room"):
        exact_model("four_ranks").steps.keep(0, 1, 0)


def test_sizes_are_those_of_the_leaves(steps):
    device = steps.device
    shapes = state_shapes(device.family, device.config, device.shards, 1, 1, steps.page, np.dtype(np.float32))
    sizes = kept_sizes(device.family, shapes, 1)
    assert sizes.state == sum(leaf.nbytes for leaf in steps.kept.leaves) // steps.slots
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(steps.state))
    assert whole == steps.lanes * sizes.state + steps.pages * sizes.page
    assert kept_sizes(device.family, shapes, 4).state == 4 * sizes.state


def test_a_budget_pays_for_states_and_pages_or_names_the_size_of_one():
    sizes = KeptSizes(state=1000, page=100)
    assert divide_budget(0, sizes, 8) == (0, 0)
    with pytest.raises(ValueError, match=r"1099 bytes holds no state: one takes 1000 bytes, and 100 for each page"):
        divide_budget(1099, sizes, 8)
    assert divide_budget(1100, sizes, 8) == (1, 1)
    assert divide_budget(8000, sizes, 8) == (4, 32)
    for budget in range(1100, 200_000, 777):
        slots, pages = divide_budget(budget, sizes, 8)
        assert slots * 1000 + pages * 100 <= budget and slots and pages
    assert default_budget(sizes, lanes=4, context_pages=8) == 4 * 1800
    assert default_budget(KeptSizes(1 << 30, 1 << 26), lanes=4, context_pages=128) == 2 << 30
