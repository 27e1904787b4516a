"""Traced: what training lowers. Read next: steps.py."""

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from experiments.train.drafts import draft_hidden
from experiments.train.network import ROOM, last_streams
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import ModelParams, MtpParams
from fnx_jax.families.flash_next.sequence import residual
from fnx_jax.families.flash_next.sequence.dense import dot

BALANCE, INDEX, SIZE = 0.01, 0.1, 1e-4
"""Weights of the router's balance, the indexer's loss, and the squared log-sum-exp of the logits."""


@struct.dataclass
class Learner:
    """All but the draft head: params without it and without line maps; table [rows, row_dim], n-grams. float32."""

    params: ModelParams
    table: Any


@struct.dataclass
class Batch:
    """token [B, T + 1] int32; ngram [B, T, H] int32, the table rows that each of the first T tokens reads."""

    token: Any
    ngram: Any


def embeddings(learner: Learner, batch: Batch) -> Float[Array, "B T E"]:
    """Each row's n-gram embedding, hash heads side by side."""
    return learner.table[batch.ngram].reshape(*batch.ngram.shape[:2], -1)


def token_loss(
    learner: Learner, config: FlashNextConfig, batch: Batch, room: float = ROOM
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Cross-entropy of the next token plus the side losses; returns the parts by name too.

    room: of an expert, over its even share. share: [layers, E], of the picks that each expert gets.
    """
    streams, side = last_streams(learner.params, config, batch.token[:, :-1], embeddings(learner, batch), room)
    logits_RV = _logits(learner.params, residual.read_only(streams, learner.params.mixer, config))
    size_R = jax.nn.logsumexp(logits_RV, axis=-1)
    loss = jnp.mean(size_R - _at(logits_RV, batch.token[:, 1:].reshape(-1)))
    total = loss + BALANCE * side.balance + INDEX * side.index + SIZE * jnp.mean(jnp.square(size_R))
    shares = jnp.stack([layer.share for layer in side.routing])
    parts = {"loss": loss, "balance": side.balance / len(side.routing), "index": side.index}
    return total, parts | {"share": shares}


def draft_loss(
    mtp: MtpParams, learner: Learner, config: FlashNextConfig, batch: Batch, depths: int
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Mean over depths of the drafts' cross-entropy against what the main model itself gives that row.

    What accepts a draft is the main model's choice, not the text, so its distribution is what the head learns; the rest
    stays as it is. `accept_d`: the share of rows where the likeliest tokens agree.
    """
    token_BT, params = batch.token[:, :-1], dataclasses.replace(learner.params, mtp=mtp)
    B, T = token_BT.shape
    streams, _ = last_streams(params, config, token_BT, embeddings(learner, batch))
    share_RV = jax.nn.softmax(_logits(params, residual.read_only(streams, params.mixer, config)), axis=-1)
    hidden, side = draft_hidden(params, config, streams, token_BT, depths)
    total, parts = BALANCE * side.balance + INDEX * side.index, {"index": side.index, "loss": jnp.float32(0)}
    for depth, x_RD in enumerate(hidden, 1):
        real_R = jnp.tile(jnp.arange(T) < T - depth, B).astype(jnp.float32)
        log_RV = jax.nn.log_softmax(_logits(params, x_RD), axis=-1)
        aimed_RV = jnp.roll(share_RV, -depth, axis=0)
        loss = -jnp.sum(jnp.sum(aimed_RV * log_RV, axis=-1) * real_R) / jnp.sum(real_R)
        agrees_R = jnp.argmax(log_RV, axis=-1) == jnp.argmax(aimed_RV, axis=-1)
        total, parts["loss"] = total + loss / depths, parts["loss"] + loss / depths
        parts[f"accept_{depth}"] = jnp.sum(agrees_R * real_R) / jnp.sum(real_R)
    return total, parts


def _logits(params: ModelParams, x_RD: Float[Array, "R D"]) -> Float[Array, "R V"]:
    return dot(x_RD, cast(Array, params.head), x_RD.dtype)


def _at(value_RV: Float[Array, "R V"], token_R: Int[Array, " R"]) -> Float[Array, " R"]:
    return jnp.take_along_axis(value_RV, token_R[:, None], axis=1)[:, 0]
