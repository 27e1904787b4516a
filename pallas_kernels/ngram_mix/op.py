"""Traced: gates an n-gram embedding into every stream, with a dilated convolution over positions.

key = grouped rms(E @ key.T);  val = E @ value.T;  qry = grouped rms(R)
a_s = (key_s . qry_s) / sqrt(D);  a_s = sign(a_s) * sqrt(max(|a_s|, 1e-6));  u_s = sigmoid(a_s) * val
c = grouped rms(u);  v[t] = silu(sum_j w[:, j] * c[t - dilation * (taps-1-j)]);  R + u + v
"""

import math

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from pallas_kernels.dense_matmul import Weight, linear
from pallas_kernels.gated_delta.rows import RowPlaces, depthwise, recent_taps, write_ring
from pallas_kernels.hyper_connection import grouped_rms
from pallas_kernels.tree_sum import product_sum


@struct.dataclass
class NgramWeights:
    """key [n*D, E]; value [D, E]; norm_key, norm_query, norm_conv [n*D]; conv_CT [n*D, taps]. Wider outputs are cut."""

    key: Weight
    value: Weight
    norm_key: jax.Array
    norm_query: jax.Array
    norm_conv: jax.Array
    conv_CT: jax.Array


def injected(
    streams: Float[Array, "B N"], embedding_BE: Float[Array, "B E"], weights: NgramWeights, n: int, eps: float
) -> tuple[Float[Array, "B N"], Float[Array, "B N"]]:
    """Returns u and c of every row: what is added at once, and what the convolution takes in."""
    rows, width = streams.shape[0], streams.shape[1] // n
    embedding = embedding_BE.astype(jnp.float32)
    key = linear(embedding, weights.key)[:, : streams.shape[1]]
    key = grouped_rms(key, weights.norm_key, n, eps).reshape(rows, n, width)
    query = grouped_rms(streams, weights.norm_query, n, eps).reshape(rows, n, width)
    score = product_sum(key, query) / jnp.float32(math.sqrt(width))
    score = jnp.sign(score) * jnp.sqrt(jnp.maximum(jnp.abs(score), jnp.float32(1e-6)))
    value = linear(embedding, weights.value)[:, :width]
    u = (jax.nn.sigmoid(score)[:, :, None] * value[:, None, :]).reshape(streams.shape)
    return u, grouped_rms(u, weights.norm_conv, n, eps)


def ngram_mix(
    streams: Float[Array, "B N"],
    embedding_BE: Float[Array, "B E"],
    ring_LRN: Float[Array, "L R N"],
    places: RowPlaces,
    weights: NgramWeights,
    n: int,
    dilation: int,
    eps: float,
) -> tuple[Float[Array, "L R N"], Float[Array, "B N"]]:
    """Returns the ring with the rows' convolution inputs, and the streams with u and v added. float32."""
    u, c = injected(streams, embedding_BE, weights, n, eps)
    taps = recent_taps(ring_LRN, places, c, weights.conv_CT.shape[1], dilation)
    return write_ring(ring_LRN, places, c), streams + u + jax.nn.silu(depthwise(taps, weights.conv_CT))
