"""EXL3 layers are stored in whole blocks of 128; what a block yields beyond the layer's own width never counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.prove.search.random_linear import random_linear
from fnx_jax.families.flash_next.sequence import dense, norms
from pallas_kernels.exl3 import from_arrays
from pallas_kernels.exl3.trellis import decoded
from pallas_kernels.hyper_connection import HyperWeights, read
from pallas_kernels.ngram_mix.op import NgramWeights, injected

STREAMS, HIDDEN, RANK, EPS = 4, 96, 24, 1e-6
WIDTH = STREAMS * HIDDEN
RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(0, 0.1, shape).astype(np.float32)


def weight(outputs: int, inputs: int, quantised: bool):
    """A plain weight, or an EXL3 one padded to whole blocks."""
    if not quantised:
        return normal(outputs, inputs)
    return decoded(from_arrays(random_linear(RNG, inputs, outputs, 4, 1.0)), np.float16)


@pytest.mark.parametrize(("down", "up", "inject"), [(True, False, True), (False, True, False)])
def test_a_hyper_connection_reads_with_weights_of_any_width(down, up, inject):
    streams, norm = normal(5, WIDTH), normal(WIDTH)
    w = HyperWeights(
        norm=norm,
        down=weight(RANK, WIDTH, down),
        up=weight(WIDTH, RANK, up),
        inject=weight(STREAMS, WIDTH, inject),
    )
    x, gate = jax.jit(lambda streams: read(streams, w, STREAMS, EPS))(streams)
    normed = norms.grouped_rms(jnp.asarray(streams), jnp.asarray(norm), STREAMS, EPS)
    low = dense.linear(normed, w.down, RANK) / STREAMS
    mixed = _sigmoid(dense.linear(low * _sigmoid(low), w.up, WIDTH)) * normed
    np.testing.assert_allclose(x, mixed.reshape(5, STREAMS, HIDDEN).mean(axis=1), atol=2e-5)
    np.testing.assert_allclose(gate, 2 * _sigmoid(dense.linear(normed, w.inject, STREAMS) / STREAMS), atol=2e-5)


@pytest.mark.parametrize(("key", "value"), [(True, False), (False, True)])
def test_an_ngram_embedding_enters_with_weights_of_any_width(key, value):
    w = NgramWeights(
        key=weight(WIDTH, 64, key),
        value=weight(HIDDEN, 64, value),
        norm_key=normal(WIDTH),
        norm_query=normal(WIDTH),
        norm_conv=normal(WIDTH),
        conv_CT=normal(WIDTH, 4),
    )
    u, c = jax.jit(lambda x, e: injected(x, e, w, STREAMS, EPS))(normal(5, WIDTH), normal(5, 64))
    assert u.shape == c.shape == (5, WIDTH)


def _sigmoid(x):
    return 1 / (1 + jnp.exp(-x))
