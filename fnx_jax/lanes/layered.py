"""Host side: the network driven layer by layer, two compiled functions a layer kind, the same two as the one program.

Between a layer's halves the host may look at the picks and bring in experts. Layer weights are arguments, so a kind of
layer compiles once whatever the depth.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jaxtyping import Array, Int

from fnx_jax.families.flash_next.cache import FlashNextCache
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.forward import (
    Mixed,
    add_experts,
    folded_after,
    gather_cache,
    layer_states,
    mix_and_route,
)
from fnx_jax.families.flash_next.params import ModelParams
from fnx_jax.families.flash_next.residual import embed
from fnx_jax.families.rows import Rows
from pallas_kernels.sparse_attention import PageTable


def _first_half(config: FlashNextConfig, page: int, streams, layer, state, folded_L, rows: Rows, pages_LP, ngram_BE):
    table = PageTable(pages_BP=pages_LP[rows.places.lane_B], page=page)
    return mix_and_route(streams, layer, config, state, folded_L, rows.places, table, ngram_BE)


@dataclass(frozen=True)
class LayeredPrograms:
    """embed, mix_and_route and add_experts of one model, each jitted alone."""

    embed: Callable[..., Any]
    first_half: Callable[..., Any]
    second_half: Callable[..., Any]
    folded: Callable[..., Any]


def layered_programs(config: FlashNextConfig, page: int) -> LayeredPrograms:
    """Binds the static facts."""
    return LayeredPrograms(
        embed=jax.jit(lambda embedding, token: embed(embedding, token, config)),
        first_half=jax.jit(partial(_first_half, config, page)),
        second_half=jax.jit(lambda mixed, layer: add_experts(mixed, layer, config)),
        folded=jax.jit(folded_after),
    )


def run_layers(
    programs: LayeredPrograms,
    config: FlashNextConfig,
    params: ModelParams,
    cache: FlashNextCache,
    rows: Rows,
    pages_LP: Int[Array, "L P"],
    on_layer: Callable[[int, Mixed], None] = lambda layer, mixed: None,
) -> tuple[FlashNextCache, jax.Array]:
    """Runs a tile as `forward_rows` does, telling `on_layer` each layer's halfway point. Returns the same values."""
    streams = programs.embed(params.embedding, rows.token_B)
    states = layer_states(cache, config)
    for layer, layer_params in enumerate(params.layers):
        ngram = rows.ngram_BLE[:, config.ngram_layers.index(layer)] if layer in config.ngram_layers else None
        states[layer], mixed = programs.first_half(
            streams, layer_params, states[layer], cache.folded, rows, pages_LP, ngram
        )
        on_layer(layer, mixed)
        streams = programs.second_half(mixed, layer_params)
    return gather_cache(cache, states, programs.folded(cache.folded, rows.places), config), streams
