"""Traced: the network and its draft head over one sequence, top to bottom. Read next: functions.py."""

import jax
from jaxtyping import Array, Float, Int

from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import AttentionParams, DeltaParams, LayerParams, ModelParams, MtpParams
from fnx_jax.families.flash_next.sequence.attention import sparse_attention
from fnx_jax.families.flash_next.sequence.delta import gated_delta, gated_delta_chunked
from fnx_jax.families.flash_next.sequence.dense import cast_up, linear
from fnx_jax.families.flash_next.sequence.moe import moe
from fnx_jax.families.flash_next.sequence.ngram import ngram_mix
from fnx_jax.families.flash_next.sequence.norms import centred_rms
from fnx_jax.families.flash_next.sequence.residual import embed, read, read_only, write


def mix(
    x_TD: Float[Array, "T D"], params: DeltaParams | AttentionParams, config: FlashNextConfig, chunk: int | None
) -> Float[Array, "T D"]:
    """A layer's token mixer, of either kind. chunk: rows of a chunk of the recurrence, None for row by row."""
    if isinstance(params, AttentionParams):
        return sparse_attention(x_TD, params, config)
    if chunk is None:
        return gated_delta(x_TD, params, config)
    return gated_delta_chunked(x_TD, params, config, chunk)


def layer(
    streams: Float[Array, "T N"],
    params: LayerParams,
    config: FlashNextConfig,
    ngram_TE: Float[Array, "T E"] | None,
    chunk: int | None,
) -> Float[Array, "T N"]:
    """One decoder layer. ngram_TE: only where the layer takes an n-gram embedding."""
    if params.ngram is not None:
        if ngram_TE is None:
            raise ValueError("layer: this layer takes an n-gram embedding, and none was given")
        streams = ngram_mix(streams, ngram_TE, params.ngram, config)
    x, gate = read(streams, params.mixer_hyper, config)
    streams = write(streams, mix(x, params.mixer, config, chunk), gate)
    x, gate = read(streams, params.moe_hyper, config)
    return write(streams, moe(x, params.moe, config), gate)


def last_streams(
    params: ModelParams,
    config: FlashNextConfig,
    token_T: Int[Array, " T"],
    ngram_TLE: Float[Array, "T layers E"],
    chunk: int | None,
) -> Float[Array, "T N"]:
    """The streams after the last layer, before the final mixer."""
    wanted = (token_T.shape[0], len(config.ngram_layers))
    if token_T.ndim != 1 or ngram_TLE.ndim != 3 or ngram_TLE.shape[:2] != wanted:
        raise ValueError(
            f"sequence: tokens {list(token_T.shape)} with n-gram embeddings {list(ngram_TLE.shape)}, wanted [T] with "
            f"[T, {len(config.ngram_layers)}, {config.ngram_hidden}]; vmap takes batches"
        )
    streams = embed(params.embedding, token_T, config)
    for number, layer_params in enumerate(params.layers):
        takes = number in config.ngram_layers
        ngram = ngram_TLE[:, config.ngram_layers.index(number)] if takes else None
        with jax.named_scope(f"layer_{number}"):
            streams = layer(streams, layer_params, config, ngram, chunk)
    return streams


def logits(params: ModelParams, config: FlashNextConfig, streams: Float[Array, "T N"]) -> Float[Array, "T V"]:
    """Raw logits from the last streams, by the final mixer and the head."""
    return linear(read_only(streams, params.mixer, config), params.head, config.vocabulary)


def mtp_streams(
    params: ModelParams, config: FlashNextConfig, streams: Float[Array, "T N"], next_token_T: Int[Array, " T"]
) -> Float[Array, "T N"]:
    """The draft layer's streams from pairs (streams of row i, token of row i + 1), i = 0 .. T-1.

        X_s = fc_hidden @ h_s + fc_embedding @ rms_c(embed[t_{i+1}])    h = rms_c(R_i), ONE mean square over all streams

    They take the place of the main model's streams in a longer draft.
    """
    mtp = _draft_head(params)
    fused = mtp_fused(mtp, config, *mtp_inputs(mtp, config, streams, params.embedding[next_token_T]))
    return layer(fused, mtp.layer, config, None, None)


def mtp_inputs(
    mtp: MtpParams, config: FlashNextConfig, streams: Float[Array, "T N"], embedding_TD: Float[Array, "T D"]
) -> tuple[Float[Array, "T D"], Float[Array, "T n D"]]:
    """What fc_embedding and fc_hidden read, the embeddings being those of the next tokens."""
    token = centred_rms(cast_up(embedding_TD), mtp.norm_embedding, config.norm_eps)
    hidden = centred_rms(streams, mtp.norm_hidden, config.norm_eps)
    return token, hidden.reshape(-1, config.streams, config.hidden)


def mtp_fused(
    mtp: MtpParams, config: FlashNextConfig, token_TD: Float[Array, "T D"], hidden: Float[Array, "T n D"]
) -> Float[Array, "T N"]:
    """The streams that enter the draft layer."""
    token = linear(token_TD, mtp.fc_embedding, config.hidden)
    fused = linear(hidden, mtp.fc_hidden, config.hidden) + token[:, None, :]
    return fused.reshape(len(token_TD), -1)


def mtp_logits(params: ModelParams, config: FlashNextConfig, streams: Float[Array, "T N"]) -> Float[Array, "T V"]:
    """Draft logits from the draft layer's streams, by its own mixer and the main head. Row i predicts token i + 2."""
    return linear(read_only(streams, _draft_head(params).mixer, config), params.head, config.vocabulary)


def _draft_head(params: ModelParams) -> MtpParams:
    if params.mtp is None:
        raise ValueError("mtp: the checkpoint has no draft head, or it was not loaded")
    return params.mtp
