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
    """Takes one row (fields without the batch axis) into the state and reads the state out with its query."""
    state = row.decay[:, None, None] * state
    read = product_sum(state, row.k[:, :, None], axis=1)
    change = row.beta[:, None] * (row.v - read)
    state = state + row.k[:, :, None] * change[:, None, :]
    return state, product_sum(state, row.q[:, :, None], axis=1)
