"""A recording holds every emitted position's logits as the model gives them, and a planted fault shows."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from experiments.prove.compare import Difference, differences, equal
from experiments.prove.record import describe_row, record
from experiments.prove.streams import Workload
from fnx_jax.engine.limits import EngineConfig

SMALL = Workload(prompts=(18, 5), replies=(3, 4))


@pytest.fixture(scope="module")
def steps(exact_model):
    return exact_model("base").steps


@pytest.fixture(scope="module")
def alone(steps):
    return record(steps, requests(steps), streams=1)


def requests(steps, sampling="unfiltered"):
    return SMALL.requests(np.asarray(steps.device.valid_V), sampling)


def test_rows_are_the_logits_of_the_whole_reply(alone, exact_model, steps):
    for request in requests(steps):
        reply = alone.replies[request.id]
        logits = exact_model("base").logits([*request.prompt, *reply.tokens])
        ends = len(request.prompt) + len(reply.tokens)
        assert reply.rows == {at: describe_row(logits[at - 1]) for at in range(1, ends)}
        assert (reply.prompt, reply.finish) == (len(request.prompt), "length")


def test_company_and_chunks_leave_recordings_equal(alone, steps):
    together = record(steps, requests(steps), EngineConfig(prefill_chunk=7))
    assert equal(alone, together)
    assert any(tile.shared for found in together.rounds for tile in found.tiles)


def test_the_programs_are_those_of_before(steps):
    before = steps.programs
    record(steps, requests(steps, "greedy")[1:])
    assert steps.programs is before


def test_one_wrong_bit_of_one_row_is_found(alone, steps):
    whole = steps.programs
    calls = []

    def logits(params, streams):
        calls.append(streams)
        right = whole.logits(params, streams)
        out = np.array(right)
        if len(calls) == 2:  # the second tile of the first request: its prompt's rows 16 and 17
            out[1] = np.nextafter(out[1], np.float32(9))
        return jax.device_put(out, right.sharding)

    steps.programs = replace(whole, logits=logits)
    try:
        found = record(steps, requests(steps), streams=1)
    finally:
        steps.programs = whole
    assert differences(alone, found)[0] == Difference("stream 0", 18, "logits")
