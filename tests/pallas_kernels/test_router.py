"""Routing against a float64 formula; ties go to the lower id, at the border too. The row rule: tests/sweep."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.router import route
from pallas_kernels.router.shapes import SMALL_SHAPES

SHAPE = SMALL_SHAPES["small"]
E, A, D = SHAPE.experts, SHAPE.active, SHAPE.hidden
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((16, D)).astype(np.float32)
GATE = RNG.standard_normal((E, D)).astype(np.float32)


@jax.jit
def routed(x: jax.Array, gate: jax.Array) -> tuple[jax.Array, jax.Array]:
    return route(x, gate, A, True)


@jax.jit
def ties_upward(x: jax.Array, gate: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A wrong twin: ties go to the higher id."""
    expert, weight = route(x, gate[::-1], A, True)
    return E - 1 - expert[:, ::-1], weight[:, ::-1]


def formula(x: np.ndarray, gate: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    logits = x.astype(np.float64) @ gate.T.astype(np.float64)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    expert = np.sort(np.argsort(-p, axis=1, kind="stable")[:, :A], axis=1)
    return expert, np.take_along_axis(p, expert, axis=1)


def test_picks_are_the_likeliest_in_id_order_with_renormalised_weights():
    expert, weight = formula(ROWS, GATE)
    found = routed(ROWS, GATE)
    assert np.array_equal(found[0], expert)
    np.testing.assert_allclose(found[1], weight / weight.sum(axis=1, keepdims=True), rtol=1e-5)


def test_weights_may_stay_shares_of_all_experts():
    expert, weight = jax.jit(lambda x, g: route(x, g, A, False))(ROWS, GATE)
    assert np.array_equal(expert, formula(ROWS, GATE)[0])
    np.testing.assert_allclose(weight, formula(ROWS, GATE)[1], rtol=1e-5)


TRIPLES = np.repeat(GATE[: E // 3], 3, axis=0)
"""Three experts of equal bits side by side: four picks cut the second three."""


@pytest.mark.parametrize(
    "gate", [TRIPLES, np.zeros_like(GATE), np.tile(GATE[:1], (E, 1))], ids=["three", "zero", "one"]
)
def test_ties_go_to_the_lower_id(gate):
    p = np.asarray(jax.jit(lambda x, g: jax.lax.dot(x, g.T))(ROWS, gate), np.float64).round(3)
    wanted = np.sort(np.argsort(-p, axis=1, kind="stable")[:, :A], axis=1)
    assert np.array_equal(routed(ROWS, gate)[0], wanted)
    assert not np.array_equal(ties_upward(ROWS, gate)[0], wanted)


def test_sixteen_bit_weights_are_multiplied_in_float32():
    short = jnp.asarray(GATE).astype(jnp.bfloat16)
    assert np.array_equal(routed(ROWS, short)[1], routed(ROWS, np.asarray(short, np.float32))[1])
