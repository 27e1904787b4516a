"""Traced: the draft head over tiles of rows. It has its own attention pages and shares embedding and output head.

Row i takes the streams R_i after the main model's last layer (or the head's own, in a chain) and the NEXT token:

    X_s = fc_hidden @ h_s + fc_embedding @ rms_c(embed[t_{i+1}])
    h = rms_c(R_i) with ONE mean square over all streams

then one attention layer; its logits predict t_{i+2}. Drafts never change a reply, so only the kept rows' caches matter.
A pair that nobody drafts from only has to be remembered: `absorb_rows` writes what the whole layer would.
"""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fnx_jax.families.flash_next.cache import AttentionPages, FlashNextCache
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.forward import LayerState, add_experts, mix_and_route
from fnx_jax.families.flash_next.params import AttentionParams, ModelParams, MtpParams
from fnx_jax.families.flash_next.shards import Shards
from fnx_jax.families.flash_next.sparse_attention import project, store
from fnx_jax.families.rows import Rows
from fnx_jax.vocabulary_slices import Slices
from pallas_kernels.dense_matmul import leading_outputs, linear
from pallas_kernels.gated_delta import RowPlaces
from pallas_kernels.hyper_connection import read, read_mixed
from pallas_kernels.norms import centred_rms
from pallas_kernels.sparse_attention import PageTable


def fuse_input(
    params: MtpParams,
    config: FlashNextConfig,
    streams: Float[Array, "B N"],
    embedding_BD: Float[Array, "B D"],
) -> Float[Array, "B N"]:
    """The draft layer's streams from the main streams and the next token's embedding."""
    token = linear(centred_rms(embedding_BD, params.norm_embedding, config.norm_eps), params.fc_embedding)
    hidden = centred_rms(streams, params.norm_hidden, config.norm_eps)
    rows = hidden.reshape(-1, config.hidden)
    projected = linear(rows, params.fc_hidden)[:, : config.hidden].reshape(streams.shape[0], config.streams, -1)
    return (projected + token[:, None, : config.hidden]).reshape(streams.shape)


def draft_plane(cache: FlashNextCache, config: FlashNextConfig) -> AttentionPages:
    """The draft layer's pages; there are some where the config has a draft head."""
    return cache.attention[config.attention_layers]


def with_draft_plane(cache: FlashNextCache, config: FlashNextConfig, plane: AttentionPages) -> FlashNextCache:
    """The cache with other pages of the draft layer."""
    return replace(cache, attention=(*cache.attention[: config.attention_layers], plane))


def draft_params(params: ModelParams) -> ModelParams:
    """Those parameters that drafting reads: a small tree to hand to a program."""
    return replace(params, layers=())


def with_draft_mixer(params: ModelParams) -> ModelParams:
    """The parameters with the head's mixer as the final one: the main head then yields draft logits."""
    assert params.mtp is not None
    return replace(params, mixer=params.mtp.mixer)


def draft_input(
    params: ModelParams, config: FlashNextConfig, streams: Float[Array, "B N"], next_token_B: Int[Array, " B"]
) -> Float[Array, "B N"]:
    """The draft layer's streams from those before it and the next token."""
    assert params.mtp is not None
    return fuse_input(params.mtp, config, streams, params.embedding[next_token_B].astype(jnp.float32))


def absorb_rows(
    params: ModelParams,
    config: FlashNextConfig,
    shards: Shards,
    plane: AttentionPages,
    rows: Rows,
    before: Float[Array, "B N"],
    pages_LP: Int[Array, "L P"],
    page: int,
) -> AttentionPages:
    """Writes the pair that each row completes, (streams of the row before it, its token), at the position before.

    before: the main streams of each row's predecessor; a row at position 0 has none and completes no pair.
    Returns: the draft layer's pages, with the bits that `draft_rows` would write for the same pairs.
    """
    assert params.mtp is not None and isinstance(params.mtp.layer.mixer, AttentionParams)
    places, layer = rows.places, params.mtp.layer
    pairs = replace(
        places,
        position_B=jnp.maximum(places.position_B - 1, 0),
        live_B=places.live_B & (places.position_B > 0),
    )
    streams = draft_input(params, config, before, rows.token_B)
    x, _ = read(streams, layer.mixer_hyper, config.streams, config.norm_eps)
    projected = project(x, params.mtp.layer.mixer, config, shards, pairs.position_B)
    table = PageTable(pages_BP=pages_LP[places.lane_B], page=page)
    return store(plane, projected, params.mtp.layer.mixer, config, table, pairs)


def draft_rows(
    params: ModelParams,
    config: FlashNextConfig,
    shards: Shards,
    plane: AttentionPages,
    streams: Float[Array, "B N"],
    next_token_B: Int[Array, " B"],
    places: RowPlaces,
    pages_LP: Int[Array, "L P"],
    page: int,
) -> tuple[AttentionPages, Float[Array, "B N"]]:
    """Runs pairs (streams, next token) through the draft layer. Returns its pages and its streams X."""
    assert params.mtp is not None
    table = PageTable(pages_BP=pages_LP[places.lane_B], page=page)
    x = draft_input(params, config, streams, next_token_B)
    state = LayerState(mixer=plane, ngram=None)
    unused_folded = jnp.zeros((pages_LP.shape[0],), jnp.int32)
    state, mixed = mix_and_route(x, params.mtp.layer, config, shards, state, unused_folded, places, table, None)
    assert isinstance(state.mixer, AttentionPages)
    return state.mixer, add_experts(mixed, params.mtp.layer.moe, config, shards)


def draft_logits(
    params: ModelParams, config: FlashNextConfig, streams: Float[Array, "B N"], slices: Slices
) -> Float[Array, "B v"]:
    """Draft logits of this rank's part of a draft vocabulary, from the draft layer's streams. float32; padding: -inf.

    slices: as from `draft_slices`.
    """
    assert params.mtp is not None
    hidden = read_mixed(streams, params.mtp.mixer, config.streams, config.norm_eps)[0]
    return jnp.where(slices.padding(), -jnp.inf, linear(hidden, leading_outputs(params.head, slices.width)))
