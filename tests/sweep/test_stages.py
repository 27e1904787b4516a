"""A layer in one program has the bits of its ops one program each: what lets experts be fetched between its halves."""

from collections.abc import Callable
from typing import Any

import jax
import pytest

from tests.sweep.case import unequal
from tests.sweep.stages import Stage, Values, attention_stages, expert_stages, recurrent_stages, start

LASTING = {"streams", "ring", "committed", "delta_ring", "raws", "keys", "values", "pooled", "expert"}
"""What a layer hands on or keeps; all else stays inside the program."""
LAYERS = {"recurrent": recurrent_stages, "attention": attention_stages}


def through(stages: list[Stage], values: Any) -> Values:
    """Runs stages in order, keeping every value."""
    for stage in stages:
        values = values | stage(values)
    return values


@pytest.fixture(scope="module", params=LAYERS)
def layer(request) -> tuple[Callable[[Any], Values], Values]:
    """A layer as one program, and every value when each stage is a program of its own."""
    stages = LAYERS[request.param]() + expert_stages()
    apart = jax.device_get(through([jax.jit(stage) for stage in stages], start()))

    def whole(values: Any) -> Values:
        return {name: value for name, value in through(stages, values).items() if name in LASTING}

    return jax.jit(whole), apart


def test_one_program_has_the_bits_of_one_a_stage(layer):
    program, apart = layer
    whole = jax.device_get(program(start()))
    assert {name for name in whole if unequal(whole[name], apart[name])} == set()


def test_another_input_is_told_apart(layer):
    program, apart = layer
    other = start()
    for name in ("embedding", "keys"):
        other[name] = other[name] * 1.01
    assert unequal(program(other)["streams"], apart["streams"])
