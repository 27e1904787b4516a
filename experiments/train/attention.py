"""Traced: sparse attention over a batch, for training: its keys can be kept for a chain of drafts, its indexer learns.

Read next: drafts.py, which chains.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import AttentionParams
from fnx_jax.families.flash_next.sequence import attention as sequence
from fnx_jax.families.flash_next.sequence.dense import linear
from fnx_jax.families.flash_next.sequence.norms import centred_rms
from fnx_jax.families.flash_next.sequence.positions import positions, rotate


@struct.dataclass
class Heads:
    """Of rows [B, T]: q, gate [B, G, T, h, K], h query heads to a KV head; k, v [B, G, T, K]."""

    q: jax.Array
    gate: jax.Array
    k: jax.Array
    v: jax.Array


def heads(
    x_RD: Float[Array, "R D"],
    params: AttentionParams,
    config: FlashNextConfig,
    shape: tuple[int, ...],
    first_position: int = 0,
) -> Heads:
    """Projects rows, norms and turns their queries and keys; the first row of a sequence stands at `first_position`."""
    size, groups = config.head_size, config.kv_heads
    position_R = jnp.tile(positions(shape[1]) + first_position, shape[0])
    q, gate = jnp.split(linear(x_RD, params.q, 2 * config.heads * size).reshape(-1, config.heads, 2 * size), 2, axis=-1)
    k = linear(x_RD, params.k, groups * size).reshape(-1, groups, size)

    def turned(a: Array, norm: Array) -> Array:
        return rotate(centred_rms(a, norm, config.norm_eps), position_R, config.rotary_size, config.rope_theta)

    def grouped(a: Array) -> Array:
        return jnp.moveaxis(a.reshape(*shape, groups, -1, size), 2, 1)

    v = linear(x_RD, params.v, groups * size)
    q = turned(q, params.q_norm) / math.sqrt(size)
    return Heads(grouped(q), grouped(gate), grouped(turned(k, params.k_norm))[:, :, :, 0], grouped(v)[:, :, :, 0])


def attend(
    x_RD: Float[Array, "R D"], params: AttentionParams, config: FlashNextConfig, shape: tuple[int, ...]
) -> tuple[Float[Array, "R D"], Float[Array, ""]]:
    """The block's output, and the loss of its indexer."""
    own = heads(x_RD, params, config, shape)
    scores = all_scores(own, own.k)
    return (
        output(read_out(scores, visible(x_RD, params, config, shape), own.v, []), own, params, config),
        index_loss(scores, x_RD, params, config, shape),
    )


def all_scores(rows: Heads, k_BGSK: Float[Array, "B G S K"]) -> Float[Array, "B G T h S"]:
    """Every query against every key."""
    B, G, T, h, K = rows.q.shape
    return (rows.q.reshape(B, G, T * h, K) @ k_BGSK.swapaxes(2, 3)).reshape(B, G, T, h, -1)


def visible(
    x_RD: Float[Array, "R D"], params: AttentionParams, config: FlashNextConfig, shape: tuple[int, ...]
) -> Bool[Array, "B T S"]:
    """`visible_tokens` of every sequence; passes no gradient."""
    x_BTD, params = jax.lax.stop_gradient((x_RD.reshape(*shape, -1), params))
    return jax.vmap(functools.partial(sequence.visible_tokens, params=params, config=config))(x_BTD)


def read_out(
    scores: Float[Array, "B G T h S"],
    visible_BTS: Bool[Array, "B T S"],
    v_BGSK: Float[Array, "B G S K"],
    chained: list[tuple[Array, Array]],
) -> Float[Array, "B G T h K"]:
    """softmax over visible tokens times values. Scores come with the queries' scale in them.

    chained: each row's further score [B, G, T, h] and value [B, G, T, K].
    """
    B, G, T, h, S = scores.shape
    masked = jnp.where(visible_BTS[:, None, :, None, :], scores, -jnp.inf)
    peak = jax.lax.stop_gradient(functools.reduce(jnp.maximum, [s for s, _ in chained], jnp.max(masked, axis=-1)))
    weight = jnp.exp(masked - peak[..., None])
    total = jnp.sum(weight, axis=-1)
    out = (weight.reshape(B, G, T * h, S) @ v_BGSK).reshape(B, G, T, h, -1)
    for score, value in chained:
        more = jnp.exp(score - peak)
        total, out = total + more, out + more[..., None] * value[:, :, :, None]
    return out / total[..., None]


def output(
    out: Float[Array, "B G T h K"], rows: Heads, params: AttentionParams, config: FlashNextConfig
) -> Float[Array, "R D"]:
    """Gates head by head and projects."""
    gated = jnp.moveaxis(out * jax.nn.sigmoid(rows.gate), 1, 2)
    return linear(gated.reshape(-1, config.heads * config.head_size), params.o, config.hidden)


def index_loss(
    scores: Float[Array, "B G T h S"],
    x_RD: Float[Array, "R D"],
    params: AttentionParams,
    config: FlashNextConfig,
    shape: tuple[int, ...],
) -> Float[Array, ""]:
    """Mean cross-entropy of block scores, as logits, against where dense attention looks: the selection passes none.

    Only the index projection and its norms learn from it. Zero where a sequence has no complete block.
    """
    T, block = shape[1], config.block
    blocks = T // block
    if not blocks:
        return jnp.float32(0)
    x_BTD = jax.lax.stop_gradient(x_RD.reshape(*shape, -1))
    logits_BTN = jax.vmap(functools.partial(sequence.block_scores, params=params, config=config))(x_BTD)
    complete_TN = positions(blocks)[None, :] < ((positions(T) + 1) // block)[:, None]
    causal = positions(T)[None, :] <= positions(T)[:, None]
    dense = jnp.where(causal[None, None, :, None, :], jax.lax.stop_gradient(scores), -jnp.inf)
    looked_BTS = jnp.mean(jax.nn.softmax(dense, axis=-1), axis=(1, 3))[..., : blocks * block]
    looked_BTN = jnp.where(complete_TN[None], jnp.sum(looked_BTS.reshape(*shape, blocks, block), axis=-1), 0)
    share_BTN = looked_BTN / jnp.maximum(jnp.sum(looked_BTN, axis=-1, keepdims=True), 1e-6)
    log_BTN = jax.nn.log_softmax(jnp.where(complete_TN[None], logits_BTN, -1e9), axis=-1)
    return -jnp.mean(jnp.sum(share_BTN * log_BTN, axis=-1))
