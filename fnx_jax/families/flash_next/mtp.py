"""Traced: the draft head over one tile of rows. It has its own attention pages and shares embedding and output head.

Row i takes the streams R_i after the main model's last layer (or the head's own, in a chain) and the NEXT token:

    X_s = fc_hidden @ h_s + fc_embedding @ rms_c(embed[t_{i+1}])
    h = rms_c(R_i) with ONE mean square over all streams

then one attention layer; its logits predict t_{i+2}. Drafts never change a reply, so only the kept rows' caches matter.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fnx_jax.families.flash_next.cache import AttentionPages
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.forward import LayerState, add_experts, head_logits, mix_and_route, whole_logits
from fnx_jax.families.flash_next.params import ModelParams, MtpParams
from fnx_jax.families.flash_next.shards import Shards
from pallas_kernels.dense_matmul import linear
from pallas_kernels.gated_delta import RowPlaces
from pallas_kernels.hyper_connection import read_mixed
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


def mtp_rows(
    params: ModelParams,
    config: FlashNextConfig,
    shards: Shards,
    pages: AttentionPages,
    streams: Float[Array, "B N"],
    next_token_B: Int[Array, " B"],
    places: RowPlaces,
    pages_LP: Int[Array, "L P"],
    page: int,
) -> tuple[AttentionPages, Float[Array, "B N"]]:
    """Runs pairs (streams, next token) through the draft layer. Returns its pages and its streams X."""
    assert params.mtp is not None
    table = PageTable(pages_BP=pages_LP[places.lane_B], page=page)
    embedding = params.embedding[next_token_B].astype(jnp.float32)
    x = fuse_input(params.mtp, config, streams, embedding)
    state = LayerState(mixer=pages, ngram=None)
    unused_folded = jnp.zeros((pages_LP.shape[0],), jnp.int32)
    state, mixed = mix_and_route(x, params.mtp.layer, config, shards, state, unused_folded, places, table, None)
    assert isinstance(state.mixer, AttentionPages)
    return state.mixer, add_experts(mixed, params.mtp.layer.moe, config, shards)


def mtp_logits(
    params: ModelParams, config: FlashNextConfig, shards: Shards, streams: Float[Array, "B N"]
) -> Float[Array, "B V"]:
    """Draft logits from the draft layer's streams, by its own mixer and the main head."""
    assert params.mtp is not None
    hidden = read_mixed(streams, params.mtp.mixer, config.streams, config.norm_eps)[0]
    return whole_logits(head_logits(params, config, shards, hidden), config, shards)
