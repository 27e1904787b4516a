"""Traced: the plain network: one row of every lane, or one lane's prompt. Read next: dense.py and its siblings."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from experiments.bench.plain.attention import decode_attention, prefill_attention
from experiments.bench.plain.cache import AttentionCache, DeltaCache, PlainCache
from experiments.bench.plain.delta import decode_delta, delta_output, prefill_delta
from experiments.bench.plain.dense import linear
from experiments.bench.plain.experts import moe
from experiments.bench.plain.forms import Forms
from fnx_jax.axes import RANKS
from fnx_jax.families.flash_next.params import AttentionParams, DeltaParams, ModelParams
from fnx_jax.families.flash_next.sequence.norms import grouped_rms
from fnx_jax.families.flash_next.sequence.positions import causal_convolution
from fnx_jax.families.flash_next.sequence.residual import embed, write
from pallas_kernels.hyper_connection import HyperWeights
from pallas_kernels.ngram_mix import NgramWeights


def decode(
    forms: Forms,
    params: ModelParams,
    cache: PlainCache,
    token_B: Int[Array, " B"],
    position_B: Int[Array, " B"],
    ngram_BLE: Float[Array, "B l E"],
) -> tuple[PlainCache, Float[Array, "B V"]]:
    """One row of each lane. Returns the cache with it, and its logits."""
    cache, streams = _layers(forms, params, cache, token_B, ngram_BLE, position_B, None)
    return cache, _logits(forms, params, streams)


def prefill(
    forms: Forms,
    params: ModelParams,
    cache: PlainCache,
    token_T: Int[Array, " T"],
    lane: Int[Array, ""],
    ngram_TLE: Float[Array, "T l E"],
) -> tuple[PlainCache, Float[Array, "1 V"]]:
    """A prompt into an empty lane. Returns the cache with it, and the last row's logits."""
    cache, streams = _layers(forms, params, cache, token_T, ngram_TLE, None, lane)
    return cache, _logits(forms, params, streams[-1:])


def _layers(
    forms: Forms,
    params: ModelParams,
    cache: PlainCache,
    token_B: Array,
    ngram_BLE: Array,
    position_B: Array | None,
    lane: Array | None,
) -> tuple[PlainCache, Array]:
    config = forms.config
    streams = embed(params.embedding, token_B, config)
    delta, attention, ngram = list(cache.delta), list(cache.attention), list(cache.ngram)
    for number, layer in enumerate(params.layers):
        if layer.ngram is not None:
            place = config.ngram_layers.index(number)
            ngram[place], streams = mix_ngrams(streams, ngram_BLE[:, place], layer.ngram, forms, ngram[place], lane)
        plane = config.index_in_kind(number)
        x, gate = read(streams, layer.mixer_hyper, forms)
        if isinstance(layer.mixer, DeltaParams):
            delta[plane], out = recurrent_mixer(x, layer.mixer, forms, delta[plane], lane)
        else:
            attention[plane], out = attention_mixer(x, layer.mixer, forms, attention[plane], position_B, lane)
        streams = write(streams, out, gate)
        x, gate = read(streams, layer.moe_hyper, forms)
        streams = write(streams, moe(x, layer.moe, forms), gate)
    return PlainCache(delta=tuple(delta), attention=tuple(attention), ngram=tuple(ngram)), streams


def recurrent_mixer(
    x: Array, mixer: DeltaParams, forms: Forms, cache: DeltaCache, lane: Array | None
) -> tuple[DeltaCache, Array]:
    """The recurrent mixer; lane: of a prompt, None for a row of every lane. Returns the cache and its output."""
    if lane is None:
        cache, out = decode_delta(x, mixer, forms, cache)
    else:
        cache, out = prefill_delta(x, mixer, forms, cache, lane)
    return cache, delta_output(out, x, mixer, forms)


def attention_mixer(
    x: Array,
    mixer: AttentionParams,
    forms: Forms,
    cache: AttentionCache,
    position_B: Array | None,
    lane: Array | None,
) -> tuple[AttentionCache, Array]:
    """The attention mixer, likewise."""
    if lane is not None:
        return prefill_attention(x, mixer, forms, cache, lane)
    assert position_B is not None
    return decode_attention(x, mixer, forms, cache, position_B)


def read(streams: Array, weights: HyperWeights, forms: Forms) -> tuple[Array, Array]:
    """A block's input, and the gate of each stream for its output."""
    x, normed = _mixed(streams, weights, forms)
    n = forms.config.streams
    assert weights.inject is not None
    return x, 2 * jax.nn.sigmoid(linear(normed, weights.inject, n) / n)


def _mixed(streams: Array, weights: HyperWeights, forms: Forms) -> tuple[Array, Array]:
    config = forms.config
    normed = grouped_rms(streams, weights.norm, config.streams, config.norm_eps)
    low = jax.nn.silu(linear(normed, weights.down, config.stream_rank) / config.streams)
    mixed = jax.nn.sigmoid(linear(low, weights.up, streams.shape[1])) * normed
    return jnp.mean(mixed.reshape(streams.shape[0], config.streams, -1), axis=1), normed


def mix_ngrams(
    streams: Array, embedding: Array, weights: NgramWeights, forms: Forms, tail: Array, lane: Array | None
) -> tuple[Array, Array]:
    """The n-gram mix into the streams. Returns the rows that its convolution remembers, and the streams."""
    config, rows = forms.config, streams.shape[0]
    n, eps, shape = config.streams, config.norm_eps, (rows, config.streams, config.hidden)
    key = grouped_rms(linear(embedding, weights.key, n * config.hidden), weights.norm_key, n, eps)
    query = grouped_rms(streams, weights.norm_query, n, eps)
    score = jnp.sum((key * query).reshape(shape), axis=-1) / math.sqrt(config.hidden)
    score = jnp.sign(score) * jnp.sqrt(jnp.maximum(jnp.abs(score), 1e-6))
    value = linear(embedding, weights.value, config.hidden)
    u = (jax.nn.sigmoid(score)[:, :, None] * value[:, None, :]).reshape(streams.shape)
    c = grouped_rms(u, weights.norm_conv, n, eps)
    back = tail.shape[1]
    if lane is None:
        window = jnp.concatenate([tail, c[:, None]], axis=1)
        taps = window[:, :: config.ngram_size] * weights.conv_CT.astype(jnp.float32).T[None]
        convolved, tail = jnp.sum(taps, axis=1), window[:, 1:]
    else:
        convolved = causal_convolution(c, weights.conv_CT, config.ngram_size)
        tail = tail.at[lane].set(c[rows - back :])
    return tail, streams + u + jax.nn.silu(convolved)


def _logits(forms: Forms, params: ModelParams, streams: Array) -> Float[Array, "B V"]:
    config, shards = forms.config, forms.shards
    hidden = _mixed(streams, params.mixer, forms)[0]
    # A rank holds whole blocks; the last ones may reach past the vocabulary.
    part = linear(hidden, params.head, -(-config.vocabulary // 128 // shards.ranks) * 128)
    if shards.ranks > 1:
        part = jax.lax.all_gather(part, RANKS, axis=1, tiled=True)
    return part[:, : config.vocabulary]
