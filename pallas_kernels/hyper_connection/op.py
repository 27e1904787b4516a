"""Traced: hyper-connections over n residual streams of D features each, stored side by side.

    y = grouped centred rms of R              one mean square a stream
    m = sigmoid(up(silu(down(y) / n)))
    x = (1/n) * sum_s m_s * y_s               streams added in order
    g = 2 * sigmoid(inject(y) / n)            one scalar a stream
    write: R_s + g_s * out

Source: gated residual connections after Hyper-Connections, arXiv 2409.19606.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from pallas_kernels.dense_matmul import Weight, features, linear
from pallas_kernels.norms import centred_rms


@struct.dataclass
class HyperWeights:
    """norm [n*D]; down [rank, n*D]; up [n*D, rank]; inject [n, n*D], None in a mixer that only reads.

    rank: outputs of `down` that count; None for as many as `up` takes. Outputs beyond these shapes are cut.
    """

    norm: jax.Array
    down: Weight
    up: Weight
    inject: Weight | None
    rank: int | None = struct.field(pytree_node=False, default=None)


def grouped_rms(streams: Float[Array, "B N"], weight: Float[Array, " N"], n: int, eps: float) -> Float[Array, "B N"]:
    """Centred rms norm with one mean square for each of the n groups of the last axis."""
    grouped = streams.reshape(streams.shape[0], n, -1)
    return centred_rms(grouped, weight.reshape(n, -1), eps).reshape(streams.shape)


def read_mixed(
    streams: Float[Array, "B N"], weights: HyperWeights, n: int, eps: float
) -> tuple[Float[Array, "B D"], Float[Array, "B N"]]:
    """Returns the block's input and the normed streams it was mixed from. float32."""
    normed = grouped_rms(streams, weights.norm, n, eps)
    rank = features(weights.up)[0] if weights.rank is None else weights.rank
    low = jax.nn.silu(linear(normed, weights.down)[:, :rank] / jnp.float32(n))
    mixed = jax.nn.sigmoid(linear(low, weights.up)[:, : normed.shape[1]]) * normed
    mixed = mixed.reshape(streams.shape[0], n, -1)
    total = mixed[:, 0]
    for stream in range(1, n):
        total = total + mixed[:, stream]
    return total / jnp.float32(n), normed


def read(
    streams: Float[Array, "B N"], weights: HyperWeights, n: int, eps: float
) -> tuple[Float[Array, "B D"], Float[Array, "B n"]]:
    """Returns the block's input and the gate of each stream for its output. `weights.inject` must be there."""
    x, normed = read_mixed(streams, weights, n, eps)
    assert weights.inject is not None
    return x, jnp.float32(2) * jax.nn.sigmoid(linear(normed, weights.inject)[:, :n] / jnp.float32(n))


def write(streams: Float[Array, "B N"], out: Float[Array, "B D"], gate: Float[Array, "B n"]) -> Float[Array, "B N"]:
    """Adds gate_s * out to every stream s, un-normed."""
    grouped = streams.reshape(streams.shape[0], gate.shape[1], -1)
    return (grouped + gate[:, :, None] * out[:, None, :]).reshape(streams.shape)
