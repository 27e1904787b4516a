"""A row's bits depend on its own inputs and past: not on chunks, neighbours, places, or what was there before."""

import numpy as np
import pytest

from tests.fnx_jax.cases import Piece, run
from tests.fnx_jax.lanes.views import assert_same, lane_view, poison

ROWS = 45


@pytest.fixture(scope="module")
def steps(exact_model):
    """The lanes under test; each test runs its prompts from row 0."""
    return exact_model("silu_two_ple").steps


@pytest.fixture(scope="module")
def tokens(golden_case):
    """One prompt a lane, resets and all."""
    prompt = golden_case("silu_two_ple")["p0.input_ids"]
    rng = np.random.default_rng(5)
    return [prompt] + [rng.integers(0, 128, ROWS + 20) for _ in range(3)]


@pytest.fixture(scope="module")
def alone(steps, tokens):
    """Each lane's logits and state, its prompt run whole and alone."""
    logits = [run(steps, [Piece(lane, ids, 0, ROWS)]) for lane, ids in enumerate(tokens)]
    return [(logits[lane], lane_view(steps, lane, ROWS)) for lane in range(len(tokens))]


def in_chunks(steps, lane, ids, cuts):
    """Runs a prompt piece by piece."""
    return np.concatenate(
        [run(steps, [Piece(lane, ids, a, b)]) for a, b in zip([0, *cuts], [*cuts, ROWS], strict=True) if a < b]
    )


@pytest.mark.parametrize("chunk", [1, 3, 5, 16, 17])
def test_prompt_in_chunks_equals_prompt_whole(chunk, steps, tokens, alone):
    logits = in_chunks(steps, 0, tokens[0], list(range(chunk, ROWS, chunk)))
    assert np.array_equal(logits, alone[0][0])
    assert_same(lane_view(steps, 0, ROWS), alone[0][1])


@pytest.mark.parametrize("cut", [2, 4, 7, 8, 15, 31, 33, 44])
def test_a_cut_anywhere_changes_nothing(cut, steps, tokens, alone):
    assert np.array_equal(in_chunks(steps, 1, tokens[1], [cut]), alone[1][0])
    assert_same(lane_view(steps, 1, ROWS), alone[1][1])


@pytest.mark.parametrize("seed", range(4))
def test_company_changes_nothing(seed, steps, tokens, alone):
    rng = np.random.default_rng(seed)
    done, found = [0] * 4, [[] for _ in range(4)]
    shared = 0
    while any(count < ROWS for count in done):
        pieces = []
        for lane in rng.permutation(4):
            take = min(int(rng.integers(0, 9)), ROWS - done[lane])
            if take:
                pieces.append(Piece(int(lane), tokens[lane], done[lane], done[lane] + take))
                done[lane] += take
        if not pieces:
            continue
        shared += len(pieces) > 1
        logits = run(steps, pieces)
        first = 0
        for piece in pieces:
            found[piece.lane].append(logits[first : first + piece.stop - piece.start])
            first += piece.stop - piece.start
    assert shared
    for lane in range(4):
        assert np.array_equal(np.concatenate(found[lane]), alone[lane][0])
        assert_same(lane_view(steps, lane, ROWS), alone[lane][1])


def test_what_a_lane_held_before_is_never_read(steps, tokens, alone):
    poison(steps)
    assert np.array_equal(run(steps, [Piece(2, tokens[2], 0, ROWS)]), alone[2][0])
    assert_same(lane_view(steps, 2, ROWS), alone[2][1])
    poison(steps)
    assert np.array_equal(in_chunks(steps, 2, tokens[2], [1, 9, 30]), alone[2][0])


def test_a_poisoned_neighbour_reaches_nobody(steps, tokens, alone):
    poison(steps)
    logits = run(steps, [Piece(0, tokens[0], 0, 7), Piece(3, tokens[3], 20, 25), Piece(1, tokens[1], 0, 4)])
    assert np.isnan(logits[7:12]).any()
    assert np.array_equal(logits[:7], alone[0][0][:7])
    assert np.array_equal(logits[12:], alone[1][0][:4])


@pytest.mark.parametrize("start", [13, 14, 15, 16, 32])
@pytest.mark.parametrize("kept", range(4))
def test_rejected_drafts_leave_no_trace(start, kept, steps, tokens, alone):
    ids, length = tokens[0], start + 1 + kept
    run(steps, [Piece(0, ids, 0, start)])
    wrong = ids.copy()
    wrong[length:] = (wrong[length:] + 1) % 128
    window = run(steps, [Piece(0, wrong, start, start + 4, drafts_from=start + 1)])
    assert np.array_equal(window[: kept + 1], alone[0][0][start:length])
    rest = run(steps, [Piece(0, ids, length, ROWS)])
    assert np.array_equal(rest, alone[0][0][length:])
    assert_same(lane_view(steps, 0, ROWS), alone[0][1])


def test_commit_equals_rows_run_for_certain(steps, tokens):
    ids = tokens[3]
    run(steps, [Piece(3, ids, 0, 20), Piece(1, tokens[1], 0, 9)])
    bystander = lane_view(steps, 1, 9)
    run(steps, [Piece(3, ids, 20, 36, drafts_from=21)])
    steps.commit(np.array([0, 9, 0, 30], np.int32))
    committed = lane_view(steps, 3, 30)
    assert_same(lane_view(steps, 1, 9), bystander)
    run(steps, [Piece(3, ids, 0, 30)])
    plain = lane_view(steps, 3, 30)
    assert_same(committed, plain)


def test_rounds_of_partial_acceptance_equal_plain(steps, tokens, alone):
    ids, length = tokens[2], 5
    run(steps, [Piece(2, ids, 0, length)])
    found = []
    for drafted, accepted in [(3, 1), (0, 0), (0, 0), (2, 0), (3, 3), (1, 0), (15, 9), (4, 4), (0, 0)]:
        wrong = ids.copy()
        wrong[length + 1 + accepted :] = (wrong[length + 1 + accepted :] + 3) % 128
        logits = run(steps, [Piece(2, wrong, length, length + 1 + drafted, drafts_from=length + 1)])
        found.append(logits[: 1 + accepted])
        length += 1 + accepted
    assert np.array_equal(np.concatenate(found), alone[2][0][5:length])
    run(steps, [Piece(2, ids, length, ROWS)])
    assert_same(lane_view(steps, 2, ROWS), alone[2][1])
