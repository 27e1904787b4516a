"""Hyper-connections against float64 formulas. The row rule: tests/sweep."""

import jax
import numpy as np
import pytest

from pallas_kernels.hyper_connection import HyperWeights, read, read_mixed, write
from pallas_kernels.hyper_connection.shapes import SMALL_SHAPES

EPS = 1e-6
SHAPE = SMALL_SHAPES["small"]
N, D = SHAPE.streams, SHAPE.hidden
RNG = np.random.default_rng(0)
STREAMS = RNG.standard_normal((16, N * D)).astype(np.float32)
OUT = RNG.standard_normal((16, D)).astype(np.float32)


def weight(*shape: int) -> np.ndarray:
    return (0.3 * RNG.standard_normal(shape)).astype(np.float32)


NORM, DOWN, UP, INJECT = weight(N * D), weight(SHAPE.rank, N * D), weight(N * D, SHAPE.rank), weight(N, N * D)
WEIGHTS = HyperWeights(norm=NORM, down=DOWN, up=UP, inject=INJECT)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def formula(streams: np.ndarray, late: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """x and g in float64; `late` divides by n after the activations, a wrong twin."""
    grouped = streams.astype(np.float64).reshape(-1, N, D)
    y = grouped / np.sqrt((grouped**2).mean(axis=-1, keepdims=True) + EPS)
    y = y.reshape(-1, N * D) * (1.0 + NORM)
    before, after = (1, N) if late else (N, 1)
    low = y @ DOWN.T.astype(np.float64) / before
    low = low * sigmoid(low) / after
    m = sigmoid(low @ UP.T)
    x = (m * y).reshape(-1, N, D).mean(axis=1)
    return x, 2 * sigmoid(y @ INJECT.T / before) / after


@pytest.fixture(scope="module")
def found():
    """x and gates of the streams, and the streams after a write."""

    @jax.jit
    def layer(streams: jax.Array, weights: HyperWeights, out: jax.Array) -> tuple[jax.Array, ...]:
        x, gate = read(streams, weights, N, EPS)
        return x, gate, write(streams, out, gate), read_mixed(streams, weights, N, EPS)[0]

    return jax.device_get(layer(STREAMS, WEIGHTS, OUT))


def test_read_is_the_formula(found):
    x, gate = formula(STREAMS)
    np.testing.assert_allclose(found[0], x, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1], gate, rtol=1e-5, atol=1e-5)


def test_dividing_after_the_activations_is_told_apart(found):
    x, gate = formula(STREAMS, late=True)
    assert not np.allclose(found[0], x, rtol=1e-3) and not np.allclose(found[1], gate, rtol=1e-3)


def test_write_adds_the_gated_output_to_every_stream_as_it_was(found):
    wanted = STREAMS.reshape(16, N, D) + found[1][:, :, None] * OUT[:, None, :]
    assert np.array_equal(found[2], wanted.reshape(16, -1))


def test_a_final_mixer_reads_the_same_value_without_gates(found):
    assert np.array_equal(found[3], found[0])
    bare = HyperWeights(norm=NORM, down=DOWN, up=UP, inject=None)
    assert np.array_equal(jax.jit(lambda s, w: read_mixed(s, w, N, EPS)[0])(STREAMS, bare), found[0])
