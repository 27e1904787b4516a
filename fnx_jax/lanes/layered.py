"""Host side: the network driven layer by layer, two compiled functions a layer kind, the same two as the one program.

A kind of layer compiles once whatever the depth, since its weights are arguments; between a layer's halves the host may
look at the picks. Nothing here waits for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from fnx_jax.families.flash_next.cache import AttentionPages
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.forward import (
    LayerState,
    Mixed,
    add_experts,
    folded_after,
    gather_cache,
    layer_ngram,
    layer_states,
    mix_and_route,
)
from fnx_jax.families.flash_next.mtp import absorb_rows, draft_input, draft_params, draft_plane, with_draft_plane
from fnx_jax.families.flash_next.params import ModelParams
from fnx_jax.families.flash_next.residual import embed
from fnx_jax.families.flash_next.shards import Shards
from fnx_jax.families.rows import Rows
from fnx_jax.lanes.state import LaneState, pair_up
from fnx_jax.mesh import SAME, on_ranks
from pallas_kernels.gated_delta import RowPlaces
from pallas_kernels.row_tiles import ROW_TILE
from pallas_kernels.sparse_attention import PageTable


@dataclass(frozen=True)
class LayeredPrograms:
    """One model's layer functions, each jitted alone; those that change a state take over its buffers.

    finish, absorb: what ends a block of rows; by the second one the draft head takes in its pairs too.
    """

    config: FlashNextConfig
    embed: Callable[..., Any]
    first_half: Callable[..., Any]
    second_half: Callable[..., Any]
    finish: Callable[..., Any]
    absorb: Callable[..., Any]
    fuse: Callable[..., Any]

    def run_rows(
        self,
        params: ModelParams,
        lanes: LaneState,
        rows: Rows,
        pages_LP: Int[Array, "L P"],
        on_layer: Callable[[int, Mixed], None] = lambda layer, mixed: None,
    ) -> tuple[LaneState, jax.Array]:
        """Runs a block as the one program does, but for the pairs that it owes.

        on_layer: is told each layer's halfway point.
        """
        streams = self.embed(params.embedding, rows.token_B)
        states = layer_states(lanes.cache, self.config)
        for layer, layer_params in enumerate(params.layers):
            ngram = layer_ngram(rows, layer, self.config)
            states[layer], mixed = self.first_half(
                streams, layer_params, states[layer], lanes.cache.folded, rows, pages_LP, ngram
            )
            on_layer(layer, mixed)
            streams = self.second_half(mixed, layer_params.moe)
        memory = lanes.cache.folded, lanes.streams_LRN
        if self.config.mtp_layers and not self.owes(rows.token_B.shape[0]):
            plane, (folded, recent) = self.absorb(
                draft_params(params), draft_plane(lanes.cache, self.config), *memory, rows, streams, pages_LP
            )
            cache = with_draft_plane(gather_cache(lanes.cache, states, folded, self.config), self.config, plane)
        else:
            folded, recent = self.finish(*memory, rows, streams)
            cache = gather_cache(lanes.cache, states, folded, self.config)
        return LaneState(cache=cache, streams_LRN=recent), streams

    def owes(self, height: int) -> bool:
        """Whether a block so high leaves its pairs for later: not where the ring of streams may not hold them."""
        return bool(self.config.mtp_layers) and height <= ROW_TILE

    def draft_rows(
        self,
        params: ModelParams,
        plane: AttentionPages,
        streams: Float[Array, "B N"],
        next_token_B: Int[Array, " B"],
        places: RowPlaces,
        pages_LP: Int[np.ndarray, "L P"],
    ) -> tuple[AttentionPages, jax.Array]:
        """Runs pairs through the draft layer, by the programs of the main model's attention layers. See mtp.py."""
        assert params.mtp is not None
        layer, (x, folded) = params.mtp.layer, self.fuse(draft_params(params), streams, next_token_B, pages_LP)
        state, mixed = self.first_half(
            x, layer, LayerState(mixer=plane, ngram=None), folded, _blank_rows(places, self.config), pages_LP, None
        )
        assert isinstance(state.mixer, AttentionPages)
        return state.mixer, self.second_half(mixed, layer.moe)


def _blank_rows(places: RowPlaces, config: FlashNextConfig) -> Rows:
    """Rows of which a layer without n-grams reads the places alone."""
    rows, layers = places.lane_B.shape[0], len(config.ngram_layers)
    ngram_BLE = np.zeros((rows, layers, config.ngram_hidden if layers else 0), np.float32)
    return Rows(token_B=np.zeros(rows, np.int32), places=places, ngram_BLE=ngram_BLE)


def layered_programs(config: FlashNextConfig, shards: Shards, mesh: Mesh, page: int) -> LayeredPrograms:
    """Binds the static facts."""
    same = lambda *layouts: SAME  # noqa: E731
    return LayeredPrograms(
        config=config,
        embed=on_ranks(lambda embedding, token: embed(embedding, token, config), mesh, same),
        first_half=on_ranks(
            partial(_first_half, config, shards, page),
            mesh,
            lambda streams, layer, state, *rest: (state, SAME),
            donate=(2,),
        ),
        second_half=on_ranks(lambda mixed, moe: add_experts(mixed, moe, config, shards), mesh, same),
        finish=on_ranks(_finish, mesh, same, donate=(1,)),
        absorb=on_ranks(
            partial(_finish_and_absorb, config, shards, page),
            mesh,
            lambda params, plane, *rest: (plane, SAME),
            donate=(1, 3),
        ),
        fuse=on_ranks(
            lambda params, streams, token_B, pages_LP: (
                draft_input(params, config, streams, token_B),
                jnp.zeros((pages_LP.shape[0],), jnp.int32),
            ),
            mesh,
            same,
        ),
    )


def _first_half(
    config: FlashNextConfig, shards: Shards, page: int, streams, layer, state, folded_L, rows: Rows, pages_LP, ngram_BE
):
    table = PageTable(pages_BP=pages_LP[rows.places.lane_B], page=page)
    return mix_and_route(streams, layer, config, shards, state, folded_L, rows.places, table, ngram_BE)


def _finish(folded_L, streams_LRN, rows: Rows, streams_BN):
    _, recent = pair_up(streams_LRN, rows.places, streams_BN)
    return folded_after(folded_L, rows.places), recent


def _finish_and_absorb(
    config: FlashNextConfig,
    shards: Shards,
    page: int,
    params,
    plane,
    folded_L,
    streams_LRN,
    rows: Rows,
    streams,
    pages_LP,
):
    before, recent = pair_up(streams_LRN, rows.places, streams)
    plane = absorb_rows(params, config, shards, plane, rows, before, pages_LP, page)
    return plane, (folded_after(folded_L, rows.places), recent)
