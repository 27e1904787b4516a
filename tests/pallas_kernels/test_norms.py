"""Norms against float64 formulas; the two weight conventions are not one. The row rule: tests/sweep."""

import jax
import numpy as np
import pytest

from pallas_kernels.norms import centred_rms, l2_normalise, plain_rms
from pallas_kernels.norms.shapes import SHAPES, SMALL_SHAPES

EPS = 1e-6
CHOSEN = SMALL_SHAPES | {name: SHAPES[name] for name in ("streams", "all_streams")}


def rows(groups: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(groups * width)
    x = rng.standard_normal((4, groups, width)) * 10.0 ** rng.integers(-3, 3, (4, 1, 1))
    return x.astype(np.float32), (0.1 * rng.standard_normal((groups, width))).astype(np.float32)


def scaled(x: np.ndarray, divide: bool, weight: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    squares = (x * x).mean(axis=-1, keepdims=True) if divide else (x * x).sum(axis=-1, keepdims=True)
    return x / np.sqrt(squares + EPS) * weight


@pytest.mark.parametrize("shape", CHOSEN.values(), ids=CHOSEN)
def test_norms_are_the_formulas(shape):
    x, weight = rows(shape.groups, shape.width)

    @jax.jit
    def norms(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return centred_rms(x, weight, EPS), plain_rms(x, weight[0], EPS), l2_normalise(x)

    centred, plain, unit = norms(x, weight)
    np.testing.assert_allclose(centred, scaled(x, True, 1.0 + weight), rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(plain, scaled(x, True, weight[0]), rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(unit, scaled(x, False, np.ones(1)), rtol=2e-6, atol=1e-7)
    assert not np.allclose(centred, plain, rtol=1e-2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_one_is_added_to_a_short_weight_in_float32(dtype):
    x, weight = rows(1, 64)
    short = jax.numpy.asarray(weight).astype(dtype)
    found = jax.jit(centred_rms, static_argnums=2)(x, short, EPS)
    np.testing.assert_allclose(found, scaled(x, True, 1.0 + np.asarray(short, np.float64)), rtol=2e-6, atol=1e-7)
    rounded_late = scaled(x, True, np.asarray(jax.numpy.ones((), dtype) + short, np.float64))
    assert not np.allclose(found, rounded_late, rtol=2e-6, atol=1e-7)


def test_a_row_of_zeros_stays_zero():
    found = jax.jit(lambda x: (centred_rms(x, x[0], EPS), l2_normalise(x)))(np.zeros((2, 64), np.float32))
    assert not np.asarray(found).any()
