"""Traced: the network over a batch of sequences, for training, with what its losses need.

Rows of all sequences lie side by side, [R = B * T, ...]; where a block looks back, vmap gives it whole sequences. The
blocks are those of the sequence functions, but for experts (by buffers) and attention (batched). Read next: drafts.py.
"""

import functools
import math
from typing import cast

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from experiments.train import attention
from experiments.train.experts import expert_mix
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import AttentionParams, LayerParams, ModelParams, MoeParams
from fnx_jax.families.flash_next.sequence import moe, network, residual
from fnx_jax.families.flash_next.sequence.dense import dot
from fnx_jax.families.flash_next.sequence.ngram import ngram_mix
from pallas_kernels.hyper_connection import HyperWeights

CHUNK = 16
"""Rows of a chunk of the recurrence: what a CPU is fastest with."""
ROOM, EVERY_PICK = 1.5, math.inf
"""Rows an expert has room for, over its even share: what training takes, and what leaves out no pick."""


@struct.dataclass
class Side:
    """Beside the tokens' own loss: what the indexers have to learn, a sum over layers, and one `Routing` a layer."""

    index: jax.Array
    routing: tuple["Routing", ...]

    def __add__(self, other: "Side") -> "Side":
        return Side(self.index + other.index, self.routing + other.routing)

    @property
    def balance(self) -> jax.Array:
        """The routers' imbalance, summed over layers: 1 each where even."""
        return sum((layer.balance for layer in self.routing), jnp.float32(0))


@struct.dataclass
class Routing:
    """share [E]: of a batch's picks that each expert gets. balance: E * sum_e share_e * (mean probability of e)."""

    share: jax.Array
    balance: jax.Array


def last_streams(
    params: ModelParams,
    config: FlashNextConfig,
    token_BT: Int[Array, "B T"],
    ngram_BTE: Float[Array, "B T E"],
    room: float = ROOM,
) -> tuple[Float[Array, "R N"], Side]:
    """The streams after the last layer. One n-gram layer at most. room: of an expert, over its even share."""
    shape = token_BT.shape
    streams = residual.embed(params.embedding, token_BT.reshape(-1), config)
    side = Side(jnp.float32(0), ())
    for number, layer_params in enumerate(params.layers):
        with jax.named_scope(f"layer_{number}"):
            if layer_params.ngram is not None:
                mix = functools.partial(ngram_mix, weights=layer_params.ngram, config=config)
                streams = _flat(jax.vmap(mix)(streams.reshape(*shape, -1), ngram_BTE))
            streams, more = _layer(streams, layer_params, config, shape, room)
            side = side + more
    return streams, side


def _layer(
    streams: Float[Array, "R N"], params: LayerParams, config: FlashNextConfig, shape: tuple[int, ...], room: float
) -> tuple[Float[Array, "R N"], Side]:
    x, gate = read(streams, params.mixer_hyper, config)
    index = jnp.float32(0)
    if isinstance(params.mixer, AttentionParams):
        y, index = attention.attend(x, params.mixer, config, shape)
    else:
        mix = functools.partial(network.mix, params=params.mixer, config=config, chunk=CHUNK)
        y = _flat(jax.vmap(mix)(x.reshape(*shape, -1)))
    streams, routing = after_mixer(residual.write(streams, y, gate), params, config, room)
    return streams, Side(index, (routing,))


def after_mixer(
    streams: Float[Array, "R N"], params: LayerParams, config: FlashNextConfig, room: float
) -> tuple[Float[Array, "R N"], Routing]:
    """The second half of a layer, and how it routed."""
    x, gate = read(streams, params.moe_hyper, config)
    y, routing = mixture(x, params.moe, config, room)
    return residual.write(streams, y, gate), routing


def read(
    streams: Float[Array, "R N"], weights: HyperWeights, config: FlashNextConfig
) -> tuple[Float[Array, "R D"], Float[Array, "R n"]]:
    """`residual.read` for plain weights, the two maps of the normed streams as one."""
    n, grouped = config.streams, streams.reshape(streams.shape[0], config.streams, -1)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(grouped), axis=-1, keepdims=True) + config.norm_eps)
    normed = (grouped * scale * (1 + weights.norm.reshape(1, n, -1))).reshape(streams.shape)
    maps = cast(list[Array], [weights.down, weights.inject])
    both = dot(normed, jnp.concatenate(maps), streams.dtype) / n
    low, gate = jax.nn.silu(both[:, :-n]), 2 * jax.nn.sigmoid(both[:, -n:])
    mixed = jax.nn.sigmoid(dot(low, cast(Array, weights.up), streams.dtype)) * normed
    return jnp.mean(mixed.reshape(grouped.shape), axis=1), gate


def mixture(
    x_RD: Float[Array, "R D"], params: MoeParams, config: FlashNextConfig, room: float
) -> tuple[Float[Array, "R D"], Routing]:
    """The mixture of experts, but for picks that find no room, and how it routed."""
    probability_RE = jax.nn.softmax(dot(x_RD, params.router, x_RD.dtype), axis=-1)
    weight, expert = jax.lax.top_k(probability_RE, config.active_experts)
    if config.normalise_picks:
        weight = weight / jnp.sum(weight, axis=-1, keepdims=True)
    rows = int(min(max(room * expert.size / config.experts, 1), len(expert)))  # no row picks an expert twice
    (gate,), (up,), (down,) = cast(tuple[tuple[Array], ...], (params.lines.gate, params.lines.up, params.lines.down))
    out = expert_mix(x_RD, expert, weight, gate, up, down, rows) + moe.shared_expert(x_RD, params.shared, config)
    share_E = jnp.zeros((config.experts,), x_RD.dtype).at[expert.reshape(-1)].add(1 / expert.size)
    balance = config.experts * jnp.sum(share_E * jnp.mean(probability_RE, axis=0))
    return out, Routing(share_E, balance)


def _flat(a: Float[Array, "B T D"]) -> Float[Array, "R D"]:
    return a.reshape(-1, a.shape[-1])
