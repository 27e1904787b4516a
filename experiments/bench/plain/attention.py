"""Traced: the sparse attention block with one masked softmax over the lane. Read next: experts.py."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from experiments.bench.plain.cache import AttentionCache
from experiments.bench.plain.dense import linear
from experiments.bench.plain.forms import Forms
from fnx_jax.families.flash_next.params import AttentionParams
from fnx_jax.families.flash_next.sequence.norms import centred_rms
from fnx_jax.families.flash_next.sequence.positions import rotate


def decode_attention(
    x_BD: Float[Array, "B D"], params: AttentionParams, forms: Forms, cache: AttentionCache, position_B: Array
) -> tuple[AttentionCache, Float[Array, "B D"]]:
    """One row a lane over the lane's past."""
    config, lane = forms.config, jnp.arange(x_BD.shape[0])
    query, gate, key, value, index, raw = _project(x_BD, params, forms, position_B)
    raws = cache.raw.at[lane, position_B].set(raw)
    block = position_B // config.block
    first = block[:, None] * config.block + jnp.arange(config.block)[None, :]
    pooled = _pooled(jnp.mean(raws[lane[:, None], first], axis=1), params, forms, block * config.block)
    cache = AttentionCache(
        key=cache.key.at[lane, position_B].set(key),
        value=cache.value.at[lane, position_B].set(value),
        raw=raws,
        # An unfinished block's key is written again by the row that finishes it, and not read before.
        pooled=cache.pooled.at[lane, block].set(pooled),
    )
    scores = jnp.sum(jax.nn.relu(jnp.einsum("bhd,bnd->bhn", index, cache.pooled)), axis=1)
    visible = _visible(scores, position_B, cache.key.shape[1], forms)
    grouped = query.reshape(x_BD.shape[0], forms.shards.kv_heads, -1, config.head_size)
    weights = _softmax(jnp.einsum("bghk,bsgk->bghs", grouped, cache.key), visible[:, None, None, :], forms)
    out = jnp.einsum("bghs,bsgk->bghk", weights, cache.value).reshape(query.shape)
    return cache, _output(out, gate, params, forms)


def prefill_attention(
    x_TD: Float[Array, "T D"], params: AttentionParams, forms: Forms, cache: AttentionCache, lane: Int[Array, ""]
) -> tuple[AttentionCache, Float[Array, "T D"]]:
    """A whole prompt into an empty lane."""
    config, rows = forms.config, x_TD.shape[0]
    position = jnp.arange(rows, dtype=jnp.int32)
    query, gate, key, value, index, raw = _project(x_TD, params, forms, position)
    blocks = rows // config.block
    means = jnp.mean(raw[: blocks * config.block].reshape(blocks, config.block, -1), axis=1)
    pooled = _pooled(means, params, forms, position[:blocks] * config.block)
    scores = jnp.sum(jax.nn.relu(jnp.einsum("thd,nd->thn", index, pooled)), axis=1)
    visible = _visible(scores, position, rows, forms)
    grouped = query.reshape(rows, forms.shards.kv_heads, -1, config.head_size)
    weights = _softmax(jnp.einsum("tghk,sgk->gths", grouped, key), visible[None, :, None, :], forms)
    out = jnp.einsum("gths,sgk->tghk", weights, value).reshape(query.shape)
    new = {"key": key, "value": value, "raw": raw, "pooled": pooled}
    stored = {name: getattr(cache, name).at[lane, : len(rows_)].set(rows_) for name, rows_ in new.items()}
    return replace(cache, **stored), _output(out, gate, params, forms)


def _project(x: Array, params: AttentionParams, forms: Forms, position: Array) -> tuple[Array, ...]:
    rows, size, config, shards = x.shape[0], forms.config.head_size, forms.config, forms.shards
    q = linear(x, params.q, 2 * shards.heads * size).reshape(rows, shards.heads, 2 * size)
    k = linear(x, params.k, shards.kv_heads * size).reshape(rows, shards.kv_heads, size)
    v = linear(x, params.v, shards.kv_heads * size).reshape(rows, shards.kv_heads, size)
    width = (config.index_heads + 1) * config.index_size
    index = linear(x, params.index, width).reshape(rows, config.index_heads + 1, config.index_size)
    turned = [
        _turned(part, norm, forms, position)
        for part, norm in ((q[..., :size], params.q_norm), (k, params.k_norm), (index[:, :-1], params.index_q_norm))
    ]
    return turned[0], q[..., size:], turned[1], v, turned[2], index[:, -1]


def _pooled(mean: Array, params: AttentionParams, forms: Forms, position: Array) -> Array:
    return _turned(mean[:, None, :], params.index_k_norm, forms, position)[:, 0]


def _visible(scores_BN: Array, position_B: Array, reach: int, forms: Forms) -> Bool[Array, "B S"]:
    block, keep = forms.config.block, forms.config.kept_blocks
    seen = (position_B + 1) // block
    place = jnp.arange(reach, dtype=jnp.int32)[None, :]
    causal, tail = place <= position_B[:, None], place >= (seen * block)[:, None]
    blocks = scores_BN.shape[1]
    if blocks <= keep:
        return causal
    complete = jnp.arange(blocks, dtype=jnp.int32)[None, :] < seen[:, None]
    score, chosen = jax.lax.top_k(jnp.where(complete, scores_BN, -1), keep)
    row = jnp.arange(scores_BN.shape[0])[:, None]
    kept = jnp.zeros(scores_BN.shape, bool).at[row, chosen].set(score >= 0)
    kept = jnp.pad(jnp.repeat(kept, block, axis=1), ((0, 0), (0, reach - blocks * block)))
    return causal & (tail | kept)


def _softmax(scores: Array, visible: Array, forms: Forms) -> Array:
    scaled = scores * (1 / math.sqrt(forms.config.head_size))
    return jax.nn.softmax(jnp.where(visible, scaled, -jnp.inf), axis=-1)


def _output(out_BHK: Array, gate_BHK: Array, params: AttentionParams, forms: Forms) -> Float[Array, "B D"]:
    gated = (out_BHK * jax.nn.sigmoid(gate_BHK)).reshape(out_BHK.shape[0], -1)
    return forms.project(linear, gated, params.o, forms.shards.ranks)


def _turned(x: Array, norm: Array, forms: Forms, position: Array) -> Array:
    config = forms.config
    return rotate(centred_rms(x, norm, config.norm_eps), position, config.rotary_size, config.rope_theta)
