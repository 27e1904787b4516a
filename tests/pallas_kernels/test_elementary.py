"""exp, log and log1p by definition: near the true value, right at the ends, one result in every shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.elementary import exp, log, log1p

RNG = np.random.default_rng(0)
EXPONENTS = np.concatenate([RNG.uniform(-86, 88.7, 20000), RNG.standard_normal(20000), np.linspace(-1e-3, 1e-3, 99)])
ARGUMENTS = np.concatenate([2.0 ** RNG.uniform(-126, 128, 20000), RNG.uniform(0.5, 2, 20000)])
OFFSETS = np.concatenate([s * 2.0 ** RNG.uniform(-65, 0, 20000) for s in (-1, 1)] + [RNG.uniform(-0.9, 2, 20000)])
ALL = [
    (exp, np.exp, EXPONENTS.astype(np.float32)),
    (log, np.log, ARGUMENTS.astype(np.float32)),
    (log1p, np.log1p, OFFSETS.astype(np.float32)),
]
MOST = {exp: 1, log: 1, log1p: 1.5}
"""Units in the last place by which a function may miss."""


def misses(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Distance in units in the last place."""
    return np.abs(found.astype(np.float64) - wanted) / np.spacing(np.abs(wanted).astype(np.float32))


@pytest.mark.parametrize(("function", "true", "x"), ALL, ids=["exp", "log", "log1p"])
def test_values_are_within_a_unit_or_so_in_the_last_place(function, true, x):
    wanted = true(x.astype(np.float64))
    assert misses(np.asarray(jax.jit(function)(x)), wanted).max() < MOST[function]
    assert misses(np.nextafter(np.nextafter(wanted.astype(np.float32), np.inf), np.inf), wanted).max() > MOST[function]


def test_ends_of_exp():
    x = np.array([-np.inf, -1e30, -88, 0, -0.0, 88.72, 88.73, np.inf, np.nan], np.float32)
    found = np.asarray(jax.jit(exp)(x))
    assert found[[0, 1, 2, 3, 4, 6, 7]].tolist() == [0, 0, 0, 1, 1, np.inf, np.inf]
    assert np.isfinite(found[5]) and np.isnan(found[8])


def test_ends_of_log():
    x = np.array([0, -0.0, 1, np.inf, -1, -np.inf, np.nan], np.float32)
    found = np.asarray(jax.jit(log)(x))
    assert found[:4].tolist() == [-np.inf, -np.inf, 0, np.inf] and np.isnan(found[4:]).all()


def test_ends_of_log1p():
    x = np.array([-1, 0, -0.0, np.inf, -(2**-65), 2**-65, -2, -np.inf, np.nan], np.float32)
    found = np.asarray(jax.jit(log1p)(x))
    assert found[:6].tolist() == [-np.inf, 0, 0, np.inf, -(2**-65), 2**-65] and np.isnan(found[6:]).all()


@pytest.mark.parametrize(("function", "true", "x"), ALL, ids=["exp", "log", "log1p"])
def test_a_value_has_one_result_in_every_shape(function, true, x):
    x = x[:336]
    whole = np.asarray(jax.jit(function)(x))

    def column(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        both = x[:, :1] + jnp.zeros_like(x[:, :1])
        return function(both[:, 0]), both

    for size in (1, 3, 6, 7, 16):
        found = [np.asarray(jax.jit(function)(piece)) for piece in x.reshape(-1, size)[:20]]
        assert np.array_equal(np.concatenate(found), whole[: 20 * size])
    assert np.array_equal(jax.jit(column)(x[:16, None])[0], whole[:16])
