"""Traced: attention of each row over its kept blocks, then over the tail of its own past.

Kept blocks ascend by absolute id and are cut into parts of PART blocks by slot; the tail is the last part. Parts meet
by online softmax in that order, so a row sees the same sums whatever the other rows see. The queries of a KV head are
rows of a height that gives each its bits, so that they do not depend on how many share it. Operands have the caches'
dtype, accumulators are float32. One path for every length.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.elementary import exp
from pallas_kernels.row_tiles import dot_height
from pallas_kernels.sparse_attention.pages import PageTable, read_units, value_dtype
from pallas_kernels.tree_sum import tree_sum

PART = 16
"""Blocks of one part."""

_LOW = -1e30
_Carry = tuple[jax.Array, jax.Array, jax.Array]


def attend(
    q_BHK: Float[Array, "B H K"],
    key_PSGK: Float[Array, "P S G K"],
    value_PSGK: Float[Array, "P S G K"],
    table: PageTable,
    kept_BK: Int[Array, "B kept"],
    count_B: Int[Array, " B"],
    position_B: Int[Array, " B"],
    block: int,
) -> Float[Array, "B H K"]:
    """softmax(q . k / sqrt(K)) v over the tokens of kept blocks and the tokens after the last complete block.

    Args:
      q_BHK: turned queries, float32; head h reads KV head h // (H / G).
      key_PSGK, value_PSGK: pages of S positions, the rows' own keys already in them.
      kept_BK, count_B: kept block ids ascending, of which the first count_B are real.
      position_B: the rows' positions; a row sees itself and what is before it.
    Returns: float32.
    """
    rows, heads, size = q_BHK.shape
    groups = key_PSGK.shape[2]
    share = heads // groups
    height = dot_height(share)
    q = q_BHK.reshape(rows, groups, share, size) * jnp.float32(1 / math.sqrt(size))
    q = jnp.pad(q, ((0, 0), (0, 0), (0, height - share), (0, 0))).astype(value_dtype(key_PSGK))
    padded = jnp.pad(kept_BK, ((0, 0), (0, -kept_BK.shape[1] % PART)))
    offset = jnp.arange(block, dtype=jnp.int32)

    def part(i: jax.Array, carry: _Carry) -> _Carry:
        chosen = jax.lax.dynamic_slice_in_dim(padded, i * PART, PART, axis=1)
        real = i * PART + jnp.arange(PART, dtype=jnp.int32)[None, :] < count_B[:, None]
        position = (chosen[:, :, None] * block + offset[None, None, :]).reshape(rows, PART * block)
        return _fold_part(q, key_PSGK, value_PSGK, table, position, jnp.repeat(real, block, axis=1), carry)

    shape = (rows, groups, height)
    carry = (jnp.full(shape, _LOW, jnp.float32), jnp.zeros(shape, jnp.float32), jnp.zeros((*shape, size), jnp.float32))
    carry = jax.lax.fori_loop(0, (jnp.max(count_B) + (PART - 1)) // PART, part, carry)
    tail = ((position_B + 1) // block * block)[:, None] + offset[None, :]
    _, total, out = _fold_part(q, key_PSGK, value_PSGK, table, tail, tail <= position_B[:, None], carry)
    out = out * (jnp.float32(1) / total)[..., None]
    return out[:, :, :share].reshape(rows, heads, size)


def _fold_part(
    q: Array, key_PSGK: Array, value_PSGK: Array, table: PageTable, position_BN: Array, real_BN: Array, carry: _Carry
) -> _Carry:
    highest, total, out = carry
    flat = table.units(position_BN, table.page)
    keys, values = read_units(key_PSGK, flat), read_units(value_PSGK, flat)
    values = jnp.where(real_BN[:, :, None, None], values, jnp.zeros((), values.dtype))
    real = real_BN[:, None, None, :]
    scores = jnp.where(real, _dot(q, keys, 3, 3), jnp.float32(_LOW))
    now = jnp.maximum(highest, jnp.max(scores, axis=-1))
    weight = jnp.where(real, exp(scores - now[..., None]), jnp.float32(0))
    shrink = exp(highest - now)
    sums = total * shrink + tree_sum(weight)
    outs = out * shrink[..., None] + _dot(weight.astype(values.dtype), values, 3, 1)
    some = jnp.any(real_BN, axis=1)[:, None, None]
    # A part without a real token leaves the carry's very bits, signed zeros included.
    return (
        jnp.where(some, now, highest),
        jnp.where(some, sums, total),
        jnp.where(some[..., None], outs, out),
    )


def _dot(a_BGHX: Array, b_BNGK: Array, contract_a: int, contract_b: int) -> Array:
    """Contracts per row and KV head; b has [B, N, G, K]."""
    return jax.lax.dot_general(
        a_BGHX,
        b_BNGK,
        (((contract_a,), (contract_b,)), ((0, 1), (0, 2))),
        # Never None, which would ask jax_default_matmul_precision.
        precision=jax.lax.Precision.HIGHEST if a_BGHX.dtype == jnp.float32 else jax.lax.Precision.DEFAULT,
        preferred_element_type=jnp.float32,
    )
