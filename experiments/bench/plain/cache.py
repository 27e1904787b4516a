"""Traced: what the plain network remembers: one row of arrays a lane, as long as the longest lane needs."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from fnx_jax.families.flash_next.cache import delta_sizes
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.shards import Shards
from fnx_jax.mesh import DEALT, SAME


@struct.dataclass
class DeltaCache:
    """state [L, H, dk, dv]; tail [L, taps-1, C], the newest rows before the convolution."""

    state: Any
    tail: Any


@struct.dataclass
class AttentionCache:
    """key, value [L, S, G, K]; raw index keys [L, S, D]; pooled keys [L, S/block, D]. float32."""

    key: Any
    value: Any
    raw: Any
    pooled: Any


@struct.dataclass
class PlainCache:
    """One entry a layer of the kind; ngram: [L, (taps-1)*n, N], inputs of the dilated convolution."""

    delta: tuple[DeltaCache, ...]
    attention: tuple[AttentionCache, ...]
    ngram: tuple[Any, ...]


def empty_cache(config: FlashNextConfig, shards: Shards, lanes: int, reach: int) -> PlainCache:
    """One rank's cache of `lanes` lanes of `reach` positions, a multiple of the block."""
    sizes, zeros = delta_sizes(config, shards), lambda *shape: jnp.zeros((lanes, *shape), jnp.float32)
    heads = (reach, shards.kv_heads, config.head_size)

    def delta() -> DeltaCache:
        state = zeros(sizes.value_heads, sizes.key_size, sizes.value_size)
        return DeltaCache(state=state, tail=zeros(config.delta_taps - 1, sizes.channels))

    def attention() -> AttentionCache:
        raw, pooled = zeros(reach, config.index_size), zeros(reach // config.block, config.index_size)
        return AttentionCache(key=zeros(*heads), value=zeros(*heads), raw=raw, pooled=pooled)

    back = (config.ngram_taps - 1) * config.ngram_size
    return PlainCache(
        delta=tuple(delta() for _ in range(config.delta_layers)),
        attention=tuple(attention() for _ in range(config.attention_layers)),
        ngram=tuple(zeros(back, config.streams * config.hidden) for _ in config.ngram_layers),
    )


def cache_layout(cache: PlainCache, shards: Shards) -> PlainCache:
    """Which leaves are dealt: those of heads."""
    delta = DEALT if shards.delta_ranks > 1 else SAME
    heads = DEALT if shards.ranks > 1 else SAME
    return PlainCache(
        delta=jax.tree.map(lambda leaf: delta, cache.delta),
        attention=tuple(AttentionCache(key=heads, value=heads, raw=SAME, pooled=SAME) for _ in cache.attention),
        ngram=jax.tree.map(lambda leaf: SAME, cache.ngram),
    )
