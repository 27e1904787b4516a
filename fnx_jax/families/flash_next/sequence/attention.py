"""Traced: a sparse attention layer's block over a sequence, selection as a mask over all of its tokens.

Keys and values keep the dtype of the streams, where serving rounds them to the cache's. Read next: moe.py.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import AttentionParams
from fnx_jax.families.flash_next.sequence.dense import linear
from fnx_jax.families.flash_next.sequence.norms import centred_rms
from fnx_jax.families.flash_next.sequence.positions import positions, rotate


def sparse_attention(
    x_TD: Float[Array, "T D"], params: AttentionParams, config: FlashNextConfig
) -> Float[Array, "T D"]:
    """softmax(q . k / sqrt(K)) v over each row's visible tokens, gated head by head and projected.

    The selection passes no gradient, so the index projection and its norms get zeros.
    """
    return linear(gated_values(x_TD, params, config), params.o, config.hidden)


def gated_values(x_TD: Float[Array, "T D"], params: AttentionParams, config: FlashNextConfig) -> Float[Array, "T O"]:
    """What the output projection reads: each head's attended values times its gate, heads side by side."""
    rows, size, groups = x_TD.shape[0], config.head_size, config.kv_heads
    q = linear(x_TD, params.q, 2 * config.heads * size).reshape(rows, config.heads, 2 * size)
    k = linear(x_TD, params.k, groups * size).reshape(rows, groups, size)
    v = linear(x_TD, params.v, groups * size).reshape(rows, groups, size)
    query = _turned(q[..., :size], params.q_norm, config).reshape(rows, groups, -1, size)
    scores = _einsum("tghk,sgk->tghs", query, _turned(k, params.k_norm, config)) / math.sqrt(size)
    visible = visible_tokens(x_TD, params, config)[:, None, None, :]
    out = _einsum("tghs,sgk->tghk", jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1), v)
    return (out.reshape(rows, config.heads, size) * jax.nn.sigmoid(q[..., size:])).reshape(rows, -1)


def visible_tokens(x_TD: Float[Array, "T D"], params: AttentionParams, config: FlashNextConfig) -> Bool[Array, "T S"]:
    """Which tokens each row may read: those of its kept blocks, and those after its last complete block.

    A row keeps the blocks with the highest scores, ties to the lower block; its own may be among the dropped ones.
    """
    rows, blocks = x_TD.shape[0], x_TD.shape[0] // config.block
    position = positions(rows)
    seen_T = (position + 1) // config.block
    causal = position[None, :] <= position[:, None]
    tail = position[None, :] >= (seen_T * config.block)[:, None]
    if not blocks:
        return causal
    complete = positions(blocks)[None, :] < seen_T[:, None]
    scores = jnp.where(complete, block_scores(x_TD, params, config), -1)
    score, block = lax.top_k(scores, min(config.kept_blocks, blocks))
    kept = jnp.zeros((rows, blocks), bool).at[position[:, None], block].set(score >= 0)
    chosen = jnp.repeat(kept, config.block, axis=1)
    return causal & (tail | jnp.pad(chosen, ((0, 0), (0, rows - chosen.shape[1]))))


def block_scores(x_TD: Float[Array, "T D"], params: AttentionParams, config: FlashNextConfig) -> Float[Array, "T N"]:
    """sum over index heads of relu(q_h . key_B) / sqrt(d) for every complete block B of the sequence."""
    rows, heads, size = x_TD.shape[0], config.index_heads, config.index_size
    blocks = rows // config.block
    index = linear(x_TD, params.index, (heads + 1) * size).reshape(rows, heads + 1, size)
    query = _turned(index[:, :-1], params.index_q_norm, config)
    mean = jnp.mean(index[: blocks * config.block, -1].reshape(blocks, config.block, size), axis=1)
    key = _turned(mean[:, None, :], params.index_k_norm, config, config.block)[:, 0]
    dots = _einsum("thd,bd->thb", query, key)
    # Not jax.nn.relu, whose zero may carry a sign, which top_k would rank.
    return jnp.sum(jnp.where(dots > 0, dots, 0), axis=1) / math.sqrt(size)


def _turned(x_THK: Array, norm: Array, config: FlashNextConfig, stride: int = 1) -> Array:
    position = positions(x_THK.shape[0]) * stride
    return rotate(centred_rms(x_THK, norm, config.norm_eps), position, config.rotary_size, config.rope_theta)


def _einsum(subscripts: str, a: Array, b: Array) -> Array:
    return jnp.einsum(subscripts, a, b, precision=lax.Precision.HIGHEST)
