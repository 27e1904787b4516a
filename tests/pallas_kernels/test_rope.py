"""Rope against float64 formulas: half-split pairs, the leading dimensions only. The row rule: tests/sweep."""

import jax
import numpy as np
import pytest

from pallas_kernels.rope import inverse_frequencies, rotate
from pallas_kernels.rope.shapes import SHAPES, SMALL_SHAPES

POSITIONS = np.array([0, 1, 2, 77, 4095, 262143], np.int32)
CHOSEN = SMALL_SHAPES | {"queries": SHAPES["queries"]}


def heads(shape) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((len(POSITIONS), shape.heads, shape.size)).astype(np.float32)


def turned(x: np.ndarray, shape, neighbours: bool = False) -> np.ndarray:
    """The formula on angles of float32; `neighbours` pairs dimensions 2j and 2j + 1 instead, a wrong twin."""
    half = shape.rotary // 2
    frequency = (shape.theta ** -(np.arange(0, shape.rotary, 2) / shape.rotary)).astype(np.float32)
    angle = (POSITIONS.astype(np.float32)[:, None] * frequency).astype(np.float64)[:, None, :]
    low = np.arange(0, shape.rotary, 2) if neighbours else np.arange(half)
    high = low + (1 if neighbours else half)
    out = x.astype(np.float64)
    out[..., low] = x[..., low] * np.cos(angle) - x[..., high] * np.sin(angle)
    out[..., high] = x[..., high] * np.cos(angle) + x[..., low] * np.sin(angle)
    return out


@pytest.mark.parametrize("shape", CHOSEN.values(), ids=CHOSEN)
def test_heads_turn_by_the_formula(shape):
    x = heads(shape)
    found = np.asarray(jax.jit(lambda x, p: rotate(x, p, shape.rotary, shape.theta))(x, POSITIONS))
    np.testing.assert_allclose(found, turned(x, shape), atol=2e-6)
    assert np.array_equal(found[..., shape.rotary :], x[..., shape.rotary :])
    assert np.array_equal(found[0], x[0])
    assert not np.allclose(found, turned(x, shape, neighbours=True), atol=1e-2)


def test_frequencies_fall_from_one_by_powers_of_theta():
    found = inverse_frequencies(64, 1e7)
    assert found.dtype == np.float32 and found[0] == 1
    np.testing.assert_allclose(found, 1e7 ** (-2 * np.arange(32) / 64), rtol=1e-7)


def test_scores_depend_on_distance_alone():
    shape = SMALL_SHAPES["whole"]
    q, k = heads(shape)[:2, None]

    @jax.jit
    def score(position: jax.Array) -> jax.Array:
        turn = lambda x, p: rotate(x[None, 0], p[None], shape.rotary, 100.0)  # noqa: E731
        return (turn(q, position + 5) * turn(k, position)).sum()

    assert abs(score(np.int32(3)) - score(np.int32(40))) < 1e-4
