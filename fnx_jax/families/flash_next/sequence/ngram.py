"""Traced: an n-gram embedding gated into every stream of a sequence. The formulas are in pallas_kernels/ngram_mix.

Looking the embeddings up is `NgramTables.embeddings`, on the host. Read next: network.py.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.sequence.dense import linear
from fnx_jax.families.flash_next.sequence.norms import grouped_rms
from fnx_jax.families.flash_next.sequence.positions import causal_convolution
from pallas_kernels.ngram_mix import NgramWeights


def ngram_mix(
    streams: Float[Array, "T N"], embedding_TE: Float[Array, "T E"], weights: NgramWeights, config: FlashNextConfig
) -> Float[Array, "T N"]:
    """The streams with the gated embedding u and its convolution v added."""
    n, eps, shape = config.streams, config.norm_eps, (streams.shape[0], config.streams, config.hidden)
    embedding = embedding_TE.astype(streams.dtype)
    key = grouped_rms(linear(embedding, weights.key, n * config.hidden), weights.norm_key, n, eps)
    query = grouped_rms(streams, weights.norm_query, n, eps)
    score = jnp.sum((key * query).reshape(shape), axis=-1) / math.sqrt(config.hidden)
    score = jnp.sign(score) * jnp.sqrt(jnp.maximum(jnp.abs(score), 1e-6))
    value = linear(embedding, weights.value, config.hidden)
    u = (jax.nn.sigmoid(score)[:, :, None] * value[:, None, :]).reshape(streams.shape)
    c = grouped_rms(u, weights.norm_conv, n, eps)
    return streams + u + jax.nn.silu(causal_convolution(c, weights.conv_CT, config.ngram_size))
