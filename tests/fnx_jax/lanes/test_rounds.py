"""A round waits for all it queued, and a program that fails or is interrupted leaves lanes that serve again."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fnx_jax
from fnx_jax.engine.fixed_depth import FixedDepth
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.request import Request, SamplingParams
from tests.fnx_jax.cases import FOLDER, Piece, plan

PROMPT = np.arange(10, 55)


@pytest.fixture(scope="module")
def model() -> fnx_jax.Model:
    """A model of this module's own, since its programs are exchanged."""
    return fnx_jax.load(FOLDER / "base", dtype="float32", lanes=4, context=256)


def failing(rows, error):
    """A `rows` program that raises halfway, when some of the state's buffers have been taken over."""

    def run(params, state, tile, pages_LP):
        def stop(layer, mixed):
            if layer == 2:
                raise error

        return rows(params, state, tile, pages_LP, stop)

    return run


def test_a_round_without_draws_is_waited_for(model):
    output = model.steps.round(plan(model.steps, [Piece(0, PROMPT, 0, 45)]))
    assert output.tokens == ()
    assert all(leaf.is_ready() for leaf in jax.tree.leaves(model.steps.state))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError("no room")])
def test_a_program_that_stops_halfway_leaves_empty_lanes_that_serve_again(error, model):
    wanted = model.generate(PROMPT, max_tokens=6)
    whole = model.steps.programs
    model.steps.programs = replace(whole, rows=failing(whole.rows, error))
    try:
        with pytest.raises(type(error)):
            model.generate(PROMPT, max_tokens=6)
    finally:
        model.steps.programs = whole
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(model.steps.state))
    assert model.steps.owner is None  # so that an engine forgets states whose pages were among them
    assert model.generate(PROMPT, max_tokens=6) == wanted


class Broken:
    """Chains whose program fails on the device, which is known, as is that of the pages, when they are fetched."""

    def __init__(self, plane):
        self.plane = plane

    def __array__(self, *_, **__):
        for leaf in jax.tree.leaves(self.plane):
            leaf.delete()
        raise RuntimeError("no room on the device")


def test_drafts_that_fail_when_they_are_fetched_are_lost_and_no_more(model, monkeypatch):
    wanted = model.generate(PROMPT, max_tokens=6)
    calls = []

    def fails(params, plane, *rest):
        calls.append(rest)
        return plane, Broken(plane)

    monkeypatch.setattr(model.steps, "programs", replace(model.steps.programs, draft=fails))
    engine = Engine(model.steps, drafter=FixedDepth(3))
    request = Request("a", tuple(PROMPT.tolist()), SamplingParams(temperature=0.0, max_tokens=6))
    emissions = engine.run([request])["a"]
    assert [token for emission in emissions for token in emission.tokens] == wanted and len(calls) > 1
