"""Traced: the mixture of experts in three forms.

gather: each (row, pick) multiplies by its own copy of the expert    few picks
sorted: picks of one expert side by side, in tiles of `height` rows  many picks of many experts
dense: every expert over every row, weight zero where not picked     rows that pick nearly all experts
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from experiments.bench.plain.dense import linear
from experiments.bench.plain.forms import Forms
from fnx_jax.axes import RANKS
from fnx_jax.families.flash_next.params import MoeParams
from pallas_kernels.expert_matmul import take_line
from pallas_kernels.expert_matmul.grouping import group_rows


def moe(x_BD: Float[Array, "B D"], params: MoeParams, forms: Forms) -> Float[Array, "B D"]:
    """Routed experts of each row's picks, and the shared expert."""
    config, shards = forms.config, forms.shards
    logits = jnp.dot(x_BD, params.router.astype(jnp.float32).T)
    weight, expert = jax.lax.top_k(jax.nn.softmax(logits, axis=-1), config.active_experts)
    if config.normalise_picks:
        weight = weight / jnp.sum(weight, axis=-1, keepdims=True)
    rank = jax.lax.axis_index(RANKS) if shards.ranks > 1 else 0
    local = expert - rank * shards.experts
    here = (local >= 0) & (local < shards.experts)
    pools = [_pool(part) for part in (params.lines.gate, params.lines.up, params.lines.down)]
    form = {"gather": _gather, "sorted": _sorted, "dense": _dense}[forms.experts]
    out = form(x_BD, jnp.where(here, local, shards.experts), jnp.where(here, weight, 0), pools, forms)
    shared = _shared(x_BD, params, forms)
    if shards.ranks > 1 and not forms.sums:
        shared = jnp.where(rank == 0, shared, 0)
    return forms.total(out + shared)


def _pool(pools: tuple[Any, ...]) -> Any:
    (pool,) = pools  # decoded and plain experts have one width
    return pool


def _expert(x: Array, weights: list[Any], forms: Forms) -> Array:
    ffn = forms.config.expert_ffn
    hidden = jax.nn.silu(linear(x, weights[0], ffn)) * linear(x, weights[1], ffn)
    return linear(hidden, weights[2], forms.config.hidden)


def _gather(x_BD: Array, expert_BA: Array, weight_BA: Array, pools: list[Any], forms: Forms) -> Array:
    line = jnp.minimum(expert_BA, forms.shards.experts - 1).reshape(-1)
    rows = jnp.repeat(x_BD, expert_BA.shape[1], axis=0)
    out = jax.vmap(lambda x, weights: _expert(x[None], weights, forms)[0])(
        rows, [take_line(pool, line) for pool in pools]
    )
    return jnp.sum(out.reshape(*expert_BA.shape, -1) * weight_BA[..., None], axis=1)


def _dense(x_BD: Array, expert_BA: Array, weight_BA: Array, pools: list[Any], forms: Forms) -> Array:
    row = jnp.arange(x_BD.shape[0])[:, None]
    weight_BE = jnp.zeros((x_BD.shape[0], forms.shards.experts), jnp.float32)
    weight_BE = weight_BE.at[row, expert_BA].set(weight_BA, mode="drop")
    out = jax.vmap(lambda weights: _expert(x_BD, weights, forms))(pools)
    return jnp.einsum("be,ebd->bd", weight_BE, out)


def _sorted(x_BD: Array, expert_BA: Array, weight_BA: Array, pools: list[Any], forms: Forms) -> Array:
    slots = expert_BA.shape[1]
    groups = group_rows(expert_BA, forms.shards.experts, forms.height)

    def tile(i: Array, out: Array) -> Array:
        pair = groups.tile_pair[i]
        row = jnp.maximum(pair, 0) // slots
        y = _expert(x_BD[row], [take_line(pool, groups.tile_expert[i]) for pool in pools], forms)
        weight = jnp.where(pair >= 0, weight_BA.reshape(-1)[jnp.maximum(pair, 0)], 0)
        return out.at[row].add(weight[:, None] * y)

    return jax.lax.fori_loop(0, groups.count, tile, jnp.zeros_like(x_BD))


def _shared(x_BD: Array, params: MoeParams, forms: Forms) -> Array:
    split = forms.shards.ranks if forms.sums else 1
    ffn = forms.config.shared_ffn // split
    shared = params.shared
    hidden = jax.nn.silu(linear(x_BD, shared.gate, ffn)) * linear(x_BD, shared.up, ffn)
    return jax.nn.sigmoid(linear(x_BD, shared.scale, 1)) * linear(hidden, shared.down, forms.config.hidden)
