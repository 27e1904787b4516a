"""Traced: the gated delta rule, one row at a time.

    S = exp(g) * S;   d = beta * (v - S^T k);   S = S + k d^T;   o = S^T q

Source: Gated Delta Networks, arXiv 2412.06464.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from pallas_kernels.elementary import exp
from pallas_kernels.gated_delta.rows import depthwise
from pallas_kernels.norms import l2_normalise
from pallas_kernels.row_tiles import NARROWEST
from pallas_kernels.tree_sum import product_sum


@struct.dataclass
class DeltaWeights:
    """conv_CT [C, taps]; decay_log [H] (A_log); time_bias [H] (dt_bias); H value heads."""

    conv_CT: jax.Array
    decay_log: jax.Array
    time_bias: jax.Array


@struct.dataclass
class DeltaSizes:
    """key_heads, value_heads, key_size, value_size of one layer; static."""

    key_heads: int = struct.field(pytree_node=False)
    value_heads: int = struct.field(pytree_node=False)
    key_size: int = struct.field(pytree_node=False)
    value_size: int = struct.field(pytree_node=False)

    @property
    def channels(self) -> int:
        """Convolution channels: queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_size + self.value_heads * self.value_size


@struct.dataclass
class DeltaInputs:
    """What one row brings to the state: q, k [B, H, dk], v [B, H, dv], beta, decay (exp g) [B, H]."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    beta: jax.Array
    decay: jax.Array


def delta_inputs(
    taps_BTC: Float[Array, "B T C"], gates_BH: Float[Array, "B 2H"], weights: DeltaWeights, sizes: DeltaSizes
) -> DeltaInputs:
    """Convolves, activates and splits raw rows; gates_BH holds b then a."""
    rows, keys = taps_BTC.shape[0], sizes.key_heads * sizes.key_size
    mixed = jax.nn.silu(depthwise(taps_BTC, weights.conv_CT))
    q = l2_normalise(mixed[:, :keys].reshape(rows, sizes.key_heads, sizes.key_size))
    # Fenced: a product with a constant would merge with a caller's constant.
    q = jax.lax.optimization_barrier(q * jnp.float32(sizes.key_size**-0.5))
    k = l2_normalise(mixed[:, keys : 2 * keys].reshape(rows, sizes.key_heads, sizes.key_size))
    v = mixed[:, 2 * keys :].reshape(rows, sizes.value_heads, sizes.value_size)
    b, a = jnp.split(gates_BH, 2, axis=-1)
    step = jax.nn.softplus(a + weights.time_bias.astype(jnp.float32)[None, :])
    repeat = sizes.value_heads // sizes.key_heads
    return DeltaInputs(
        q=jnp.repeat(q, repeat, axis=1),
        k=jnp.repeat(k, repeat, axis=1),
        v=v,
        beta=jax.nn.sigmoid(b),
        decay=exp(-exp(weights.decay_log.astype(jnp.float32))[None, :] * step),
    )


def delta_step(
    state: Float[Array, "H dk dv"], row: DeltaInputs
) -> tuple[Float[Array, "H dk dv"], Float[Array, "H dv"]]:
    """Takes one row (fields without the batch axis) into the state and reads the state out with its query.

    The state is read once for both: o = exp(g) S^T q + (k . q) d, with the S before the row.
    """
    # Rows come one by one, so this dot has one shape whatever came along.
    read = row.decay[:, None, None] * _read_out(jnp.stack([row.k, row.q], axis=1), state)
    change = row.beta[:, None] * (row.v - read[:, 0])
    state = row.decay[:, None, None] * state + row.k[:, :, None] * change[:, None, :]
    return state, read[:, 1] + product_sum(row.k, row.q)[:, None] * change


def _read_out(keys: Float[Array, "H 2 dk"], state: Float[Array, "H dk dv"]) -> Float[Array, "H 2 dv"]:
    """Every key's product with its head's state. float32."""
    if jax.default_backend() == "gpu":
        # A library's dot may depend on the number of heads, which devices share.
        return product_sum(state[:, None], keys[:, :, :, None], axis=2)
    heads, _, size = state.shape
    # A lone head's dot, and one with few outputs, would be compiled into the program around it.
    missing = max(0, 2 - heads), max(0, NARROWEST - size)
    keys = jnp.pad(keys, ((0, missing[0]), (0, 0), (0, 0)))
    state = jnp.pad(state, ((0, missing[0]), (0, 0), (0, missing[1])))
    axes = (((2,), (1,)), ((0,), (0,)))
    return jax.lax.dot_general(keys, state, axes, precision=jax.lax.Precision.HIGHEST)[:heads, :, :size]
