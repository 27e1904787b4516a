"""Traced: what the network remembers of every lane, and the one place that lists it.

Rows of attention lie in pages and rings are addressed by absolute position, so cutting a lane back needs no work: what
lies past its length is overwritten before it is read. Only the recurrent states must be moved on, by `commit`.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import DeltaParams, ModelParams
from fnx_jax.families.flash_next.shards import Shards
from fnx_jax.families.leaves import Leaf
from fnx_jax.mesh import DEALT, SAME
from pallas_kernels.gated_delta import DeltaSizes, DeltaState, fold
from pallas_kernels.gated_delta.rows import ring_rows
from pallas_kernels.sparse_attention import pool_dtype


@struct.dataclass
class AttentionPages:
    """One attention layer's pages: key, value [P, S, G, K]; raw index keys [P, S, D]; pooled keys [P, S/block, D].

    Pooled keys are float32, the rest has the cache dtype, as `pool_dtype` stores it. Keys are stored normed and turned,
    raw index keys neither.
    """

    key: Any
    value: Any
    raw: Any
    pooled: Any


@struct.dataclass
class FlashNextCache:
    """delta, attention: one entry a layer of the kind, in layer order; the draft head's pages come last.

    ngram: one ring [L, R, n*D] an n-gram layer: inputs of its convolution. folded: [L] int32, rows that the committed
    recurrent states have taken in.
    """

    delta: tuple[DeltaState, ...]
    attention: tuple[AttentionPages, ...]
    ngram: tuple[Any, ...]
    folded: Any


def delta_sizes(config: FlashNextConfig, shards: Shards) -> DeltaSizes:
    """A rank's share of the recurrent layers, in the kernel's words."""
    return DeltaSizes(
        key_heads=shards.delta_key_heads,
        value_heads=shards.delta_value_heads,
        key_size=config.delta_key_size,
        value_size=config.delta_value_size,
    )


def empty_cache(
    config: FlashNextConfig, shards: Shards, lanes: int, pages: int, page: int, dtype: jnp.dtype
) -> FlashNextCache:
    """One rank's caches of `lanes` lanes and `pages` pages of `page` positions (a multiple of the block)."""
    if page % config.block:
        raise ValueError(f"empty_cache: a page of {page} positions is not a multiple of the block {config.block}")
    sizes, stored = delta_sizes(config, shards), pool_dtype(dtype)
    state = (lanes, sizes.value_heads, sizes.key_size, sizes.value_size)
    rows = (pages, page, shards.kv_heads, config.head_size)

    def attention() -> AttentionPages:
        return AttentionPages(
            key=jnp.zeros(rows, stored),
            value=jnp.zeros(rows, stored),
            raw=jnp.zeros((pages, page, config.index_size), stored),
            pooled=jnp.zeros((pages, page // config.block, config.index_size), jnp.float32),
        )

    def delta() -> DeltaState:
        ring = (lanes, ring_rows(config.delta_taps - 1), sizes.channels + 2 * sizes.value_heads)
        return DeltaState(committed=jnp.zeros(state, jnp.float32), ring=jnp.zeros(ring, jnp.float32))

    planes = config.attention_layers + (1 if config.mtp_layers else 0)
    ngram = (lanes, ring_rows((config.ngram_taps - 1) * config.ngram_size), config.streams * config.hidden)
    return FlashNextCache(
        delta=tuple(delta() for _ in range(config.delta_layers)),
        attention=tuple(attention() for _ in range(planes)),
        ngram=tuple(jnp.zeros(ngram, jnp.float32) for _ in config.ngram_layers),
        folded=jnp.zeros((lanes,), jnp.int32),
    )


def cache_layout(cache: FlashNextCache, shards: Shards) -> FlashNextCache:
    """Which leaves of a cache are dealt: recurrent states and KV pages, by head."""
    delta = DEALT if shards.delta_ranks > 1 else SAME
    heads = DEALT if shards.ranks > 1 else SAME
    return FlashNextCache(
        delta=tuple(DeltaState(committed=delta, ring=delta) for _ in cache.delta),
        attention=tuple(AttentionPages(key=heads, value=heads, raw=SAME, pooled=SAME) for _ in cache.attention),
        ngram=tuple(SAME for _ in cache.ngram),
        folded=SAME,
    )


def cache_kinds(cache: FlashNextCache) -> FlashNextCache:
    """What each leaf of a cache is, for whoever copies the state of a lane."""
    return FlashNextCache(
        delta=tuple(DeltaState(committed=Leaf.LANE, ring=Leaf.RING) for _ in cache.delta),
        attention=tuple(AttentionPages(*[Leaf.PAGES] * 4) for _ in cache.attention),
        ngram=tuple(Leaf.RING for _ in cache.ngram),
        folded=Leaf.LANE,
    )


def commit(
    params: ModelParams, config: FlashNextConfig, shards: Shards, cache: FlashNextCache, length_L: Int[Array, " L"]
) -> FlashNextCache:
    """Walks accepted rows into the recurrent states: afterwards lane l has taken in its first length_L[l] rows.

    length_L may lie at most one window past `folded`; a lane whose length equals it stays as it is. 0 empties a lane.
    """
    mixers = [layer.mixer for layer in params.layers if isinstance(layer.mixer, DeltaParams)]
    sizes = delta_sizes(config, shards)
    delta = tuple(
        fold(state, cache.folded, length_L, mixer.rule, sizes) for state, mixer in zip(cache.delta, mixers, strict=True)
    )
    return replace(cache, delta=delta, folded=length_L)
