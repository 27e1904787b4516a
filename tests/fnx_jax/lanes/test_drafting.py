"""Chains of drafts: one program or step by step, alone or in company, on any number of devices: the same drafts."""

from dataclasses import replace

import numpy as np
import pytest

from fnx_jax.engine.steps import DraftOutput, DraftPlan, DraftRow, Draw
from fnx_jax.families.flash_next.shards import draft_slices, vocabulary_slices
from fnx_jax.lanes.rounds import DeviceSteps
from tests.fnx_jax.cases import Piece, page_table, run
from tests.fnx_jax.lanes.views import assert_same, lane_view

LENGTHS = (21, 30, 16)
SAMPLINGS = (dict(temperature=0.0), dict(temperature=1.0, top_p=0.9), dict(temperature=1.4, top_k=9))


def prompts(steps: DeviceSteps) -> list[np.ndarray]:
    """One a lane."""
    return [np.random.default_rng(lane).integers(10, 120, length) for lane, length in enumerate(LENGTHS)]


def chains(steps: DeviceSteps, lanes=range(3), depth=5, confidence=0.0, **extra) -> DraftOutput:
    """Runs the lanes' prompts and drafts for `lanes`."""
    run(steps, [Piece(lane, ids, 0, len(ids)) for lane, ids in enumerate(prompts(steps))])
    rows = []
    for row, lane in enumerate(lanes):
        draw = Draw(row=row, position=LENGTHS[lane] + 1, seed=77 + lane, **SAMPLINGS[lane], **extra)
        rows.append(DraftRow(lane, LENGTHS[lane] - 1, 40 + lane, draw, depth))
    return steps.draft(DraftPlan(tuple(rows), page_table(steps), confidence))


@pytest.fixture(scope="module")
def steps(exact_model) -> DeviceSteps:
    """One device, step by step."""
    return exact_model("four_ranks").steps


@pytest.fixture(scope="module")
def whole(steps) -> DraftOutput:
    """All lanes' chains, undisturbed."""
    return chains(steps)


def test_chains_are_as_deep_as_was_asked(whole):
    assert [len(tokens) for tokens in whole.tokens] == [5, 5, 5]
    assert all(0 < chance <= 1 for chances in whole.chances for chance in chances)


@pytest.mark.parametrize("lane", range(3))
def test_company_changes_no_chain(lane, steps, whole):
    alone = chains(steps, [lane])
    assert (alone.tokens[0], alone.chances[0]) == (whole.tokens[lane], whole.chances[lane])


def test_a_chain_is_the_beginning_of_a_deeper_one(steps, whole):
    shallow = chains(steps, depth=2)
    assert shallow.tokens == tuple(tokens[:2] for tokens in whole.tokens)


@pytest.mark.parametrize("place", range(4))
def test_a_chain_ends_where_it_is_unlikely_but_not_before_its_first_draft(place, steps, whole):
    products = np.cumprod(np.array(whole.chances, np.float32), axis=1)
    confidence = float(products[1, place])
    found = chains(steps, confidence=confidence)
    for lane, tokens in enumerate(found.tokens):
        kept = max(1, int((products[lane] >= np.float32(confidence)).cumprod().sum()))
        assert tokens == whole.tokens[lane][:kept]


def test_a_chain_leaves_no_trace_in_what_is_kept(steps):
    before = None
    for depth in (1, 9):
        chains(steps, depth=depth)
        views = [lane_view(steps, lane, length) for lane, length in enumerate(LENGTHS)]
        before = before or views
        for found, wanted in zip(views, before, strict=True):
            assert_same(found, wanted)


def test_one_program_drafts_what_the_steps_draft(steps, whole, monkeypatch):
    likely = chains(steps, confidence=0.01)
    one = replace(steps, layered=False)
    monkeypatch.setattr(steps, "programs", replace(steps.programs, draft=one.programs.draft))
    assert chains(steps) == whole
    assert chains(steps, confidence=0.01) == likely


@pytest.mark.parametrize("devices", [2, 4])
def test_devices_change_no_chain(devices, exact_model, whole):
    assert chains(exact_model("four_ranks", devices).steps) == whole


def test_penalties_and_bias_are_those_of_the_model(steps, whole):
    bias_V = np.zeros(steps.vocabulary, np.float32)
    assert chains(steps, bias_V=bias_V).tokens == whole.tokens
    bias_V[[token for tokens in whole.tokens for token in tokens]] = -np.inf
    found = chains(steps, bias_V=bias_V)
    assert not {t for tokens in found.tokens for t in tokens} & {t for tokens in whole.tokens for t in tokens}


def test_logits_that_are_not_finite_end_their_own_chain(steps, whole):
    run(steps, [Piece(lane, ids, 0, len(ids)) for lane, ids in enumerate(prompts(steps))])
    streams = np.array(steps.state.streams_LRN)
    streams[1] = np.nan
    steps.state = replace(steps.state, streams_LRN=steps.state.streams_LRN * 0 + streams)
    rows = tuple(
        DraftRow(lane, LENGTHS[lane] - 1, 40 + lane, Draw(lane, LENGTHS[lane] + 1, 77 + lane, **SAMPLINGS[lane]), 5)
        for lane in range(3)
    )
    found = steps.draft(DraftPlan(rows, page_table(steps)))
    assert found.tokens == (whole.tokens[0], (), whole.tokens[2])


def test_a_draft_vocabulary_is_the_first_blocks(exact_model, monkeypatch):
    steps = exact_model("four_ranks", 2).steps  # the first device's slice is cut, the other has nothing to offer
    # What the whole head drafts where it may draw no other ids.
    bias_V = np.where(np.arange(steps.vocabulary) < 128, 0, -np.inf).astype(np.float32)
    wanted = chains(steps, bias_V=bias_V)
    narrow = replace(steps, draft_blocks=1)
    monkeypatch.setattr(steps, "programs", replace(steps.programs, draft=narrow.programs.draft))
    found = chains(steps)
    assert all(token < 128 for tokens in found.tokens for token in tokens)
    assert found.tokens == wanted.tokens and found.chances != wanted.chances


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_every_device_takes_the_leading_blocks_of_its_slice(devices, exact_model):
    device = exact_model("four_ranks", devices).steps.device
    whole = vocabulary_slices(device.config, device.shards)
    assert draft_slices(device.config, device.shards, None) == whole
    assert draft_slices(device.config, device.shards, 4) == whole
    three = draft_slices(device.config, device.shards, 3)
    assert (three.vocabulary, three.width, three.apart()) == (384, min(whole.width, 384), whole.width)
