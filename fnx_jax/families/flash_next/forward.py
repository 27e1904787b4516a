"""Traced: the network over one tile of rows, top to bottom: embed, layers, final mixer, head.

A tile holds rows of any lanes and positions. Read next: gated_delta.py, sparse_attention.py, moe.py, mtp.py.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from fnx_jax.collectives import gather_columns
from fnx_jax.families.flash_next.cache import AttentionPages, FlashNextCache
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.gated_delta import gated_delta_block
from fnx_jax.families.flash_next.moe import Picks, experts, route_rows
from fnx_jax.families.flash_next.params import DeltaParams, LayerParams, ModelParams, MoeParams
from fnx_jax.families.flash_next.residual import embed
from fnx_jax.families.flash_next.shards import Shards, vocabulary_slices
from fnx_jax.families.flash_next.sparse_attention import sparse_attention_block
from fnx_jax.families.rows import Rows
from pallas_kernels.dense_matmul import linear
from pallas_kernels.gated_delta import DeltaState, RowPlaces
from pallas_kernels.hyper_connection import read, read_mixed, write
from pallas_kernels.ngram_mix import ngram_mix
from pallas_kernels.sparse_attention import PageTable


@struct.dataclass
class LayerState:
    """What one layer remembers: `mixer` of its kind, and its n-gram ring where it has one."""

    mixer: DeltaState | AttentionPages
    ngram: jax.Array | None


@struct.dataclass
class Mixed:
    """A layer halfway: streams after the mixer, the experts' input, the streams' gates for their output, the picks."""

    streams: jax.Array
    x: jax.Array
    gate: jax.Array
    picks: Picks


def mix_and_route(
    streams: Float[Array, "B N"],
    params: LayerParams,
    config: FlashNextConfig,
    shards: Shards,
    state: LayerState,
    folded_L: Int[Array, " L"],
    places: RowPlaces,
    table: PageTable,
    ngram_BE: Float[Array, "B E"] | None,
) -> tuple[LayerState, Mixed]:
    """The first half of a layer: n-gram embedding, token mixer, router."""
    n, eps = config.streams, config.norm_eps
    ring = state.ngram
    if params.ngram is not None:
        assert ring is not None and ngram_BE is not None
        ring, streams = ngram_mix(streams, ngram_BE, ring, places, params.ngram, n, config.ngram_size, eps)
    x, gate = read(streams, params.mixer_hyper, n, eps)
    if isinstance(params.mixer, DeltaParams):
        assert isinstance(state.mixer, DeltaState)
        mixer, out = gated_delta_block(x, params.mixer, config, shards, state.mixer, folded_L, places)
    else:
        assert isinstance(state.mixer, AttentionPages)
        mixer, out = sparse_attention_block(x, params.mixer, config, shards, state.mixer, table, places)
    streams = write(streams, out, gate)
    x, gate = read(streams, params.moe_hyper, n, eps)
    picks = route_rows(x, params.moe, config, places.live_B)
    return LayerState(mixer=mixer, ngram=ring), Mixed(streams=streams, x=x, gate=gate, picks=picks)


def add_experts(mixed: Mixed, moe: MoeParams, config: FlashNextConfig, shards: Shards) -> Float[Array, "B N"]:
    """The second half of a layer: the experts' output into every stream."""
    out = experts(mixed.x, mixed.picks, moe.lines, moe.line_map, moe.shared, config, shards)
    return write(mixed.streams, out, mixed.gate)


def layer_states(cache: FlashNextCache, config: FlashNextConfig) -> list[LayerState]:
    """Deals the cache out to the layers."""
    states = []
    for layer, kind in enumerate(config.layer_kinds):
        planes = cache.delta if kind == "delta" else cache.attention
        ring = cache.ngram[config.ngram_layers.index(layer)] if layer in config.ngram_layers else None
        states.append(LayerState(mixer=planes[config.index_in_kind(layer)], ngram=ring))
    return states


def layer_ngram(rows: Rows, layer: int, config: FlashNextConfig) -> Float[Array, "B E"] | None:
    """The rows' n-gram embedding for a layer, None where it takes none."""
    if layer not in config.ngram_layers:
        return None
    return rows.ngram_BLE[:, config.ngram_layers.index(layer)]


def gather_cache(
    cache: FlashNextCache, states: list[LayerState], folded_L: Int[Array, " L"], config: FlashNextConfig
) -> FlashNextCache:
    """Collects the layers' states again; the draft head's pages stay."""
    delta = tuple(state.mixer for state in states if isinstance(state.mixer, DeltaState))
    attention = tuple(state.mixer for state in states if isinstance(state.mixer, AttentionPages))
    return FlashNextCache(
        delta=delta,
        attention=attention + cache.attention[config.attention_layers :],
        ngram=tuple(state.ngram for state in states if state.ngram is not None),
        folded=folded_L,
    )


def folded_after(folded_L: Int[Array, " L"], places: RowPlaces) -> Int[Array, " L"]:
    """How many rows the recurrent states have taken in after this tile: up to each lane's last certain row."""
    lanes = folded_L.shape[0]
    first = folded_L.at[jnp.where(places.first_B(), places.lane_B, lanes)].set(places.position_B, mode="drop")
    certain = places.live_B & ~places.speculative_B
    return first.at[jnp.where(certain, places.lane_B, lanes)].max(places.position_B + 1, mode="drop")


def forward_rows(
    params: ModelParams,
    config: FlashNextConfig,
    shards: Shards,
    cache: FlashNextCache,
    rows: Rows,
    pages_LP: Int[Array, "L P"],
    page: int,
) -> tuple[FlashNextCache, Float[Array, "B N"]]:
    """Runs a tile through all layers. Returns the cache with the rows in it and the streams after the last layer."""
    table = PageTable(pages_BP=pages_LP[rows.places.lane_B], page=page)
    streams = embed(params.embedding, rows.token_B, config)
    states = layer_states(cache, config)
    for layer, layer_params in enumerate(params.layers):
        with jax.named_scope(f"layer_{layer}"):
            ngram = layer_ngram(rows, layer, config)
            states[layer], mixed = mix_and_route(
                streams, layer_params, config, shards, states[layer], cache.folded, rows.places, table, ngram
            )
            streams = add_experts(mixed, layer_params.moe, config, shards)
    return gather_cache(cache, states, folded_after(cache.folded, rows.places), config), streams


def final_hidden(params: ModelParams, config: FlashNextConfig, streams: Float[Array, "B N"]) -> Float[Array, "B D"]:
    """Mixes the last streams into the head's input."""
    return read_mixed(streams, params.mixer, config.streams, config.norm_eps)[0]


def head_logits(
    params: ModelParams, config: FlashNextConfig, shards: Shards, hidden: Float[Array, "B D"]
) -> Float[Array, "B v"]:
    """Raw logits of this rank's slice of the vocabulary, see `vocabulary_slices`. float32; padding holds -inf."""
    return jnp.where(vocabulary_slices(config, shards).padding(), -jnp.inf, linear(hidden, params.head))


def whole_logits(logits_Bv: Float[Array, "B v"], config: FlashNextConfig, shards: Shards) -> Float[Array, "B V"]:
    """The slices of all ranks side by side, without padding, on every rank."""
    return gather_columns(logits_Bv, shards.ranks)[:, : config.vocabulary]
