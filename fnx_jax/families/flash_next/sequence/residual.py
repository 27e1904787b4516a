"""Traced: the residual streams of a sequence: where they begin, what a block reads, how its output is written back.

The formulas are in pallas_kernels/hyper_connection. Read next: delta.py, attention.py, moe.py.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.sequence.dense import cast_up, linear
from fnx_jax.families.flash_next.sequence.norms import grouped_rms
from pallas_kernels.hyper_connection import HyperWeights


def embed(embedding_VD: Float[Array, "V D"], token_T: Int[Array, " T"], config: FlashNextConfig) -> Float[Array, "T N"]:
    """Each token's embedding, once in every stream; float32, or float64 where the embedding is."""
    return jnp.tile(cast_up(embedding_VD[token_T]), (1, config.streams))


def read_only(streams: Float[Array, "T N"], weights: HyperWeights, config: FlashNextConfig) -> Float[Array, "T D"]:
    """The mean of the normed streams, each weighed feature by feature: a final mixer's read."""
    return _mixed(streams, weights, config)[0]


def read(
    streams: Float[Array, "T N"], weights: HyperWeights, config: FlashNextConfig
) -> tuple[Float[Array, "T D"], Float[Array, "T n"]]:
    """A block's input, and the gate of each stream for its output. `weights.inject` must be there."""
    assert weights.inject is not None
    x, normed = _mixed(streams, weights, config)
    return x, 2 * jax.nn.sigmoid(linear(normed, weights.inject, config.streams) / config.streams)


def write(streams: Float[Array, "T N"], out: Float[Array, "T D"], gate: Float[Array, "T n"]) -> Float[Array, "T N"]:
    """Adds gate_s * out to every stream s, un-normed."""
    grouped = streams.reshape(*gate.shape, -1)
    return (grouped + gate[:, :, None] * out[:, None, :]).reshape(streams.shape)


def _mixed(streams: Array, weights: HyperWeights, config: FlashNextConfig) -> tuple[Array, Array]:
    n = config.streams
    normed = grouped_rms(streams, weights.norm, n, config.norm_eps)
    low = jax.nn.silu(linear(normed, weights.down, config.stream_rank) / n)
    mixed = jax.nn.sigmoid(linear(low, weights.up, n * config.hidden)) * normed
    return jnp.mean(mixed.reshape(streams.shape[0], n, config.hidden), axis=1), normed
