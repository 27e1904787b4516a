"""Traced: the mixture of experts as two halves, so that experts may be fetched between them.

`route_rows` decides, `experts` computes; the program with all experts resident and the one that fetches them call the
same two.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from fnx_jax.collectives import rank, tree_psum
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import MoeParams, SharedExpertParams
from fnx_jax.families.flash_next.shards import Shards
from pallas_kernels.dense_matmul import linear
from pallas_kernels.expert_matmul import ExpertLines, LineMap, expert_matmul
from pallas_kernels.leaf_tree import combine
from pallas_kernels.router import route


@struct.dataclass
class Picks:
    """expert_BA: int32 ids ascending along A, the number of experts in rows that take no part; weight_BA: float32."""

    expert_BA: jax.Array
    weight_BA: jax.Array


def route_rows(
    x_BD: Float[Array, "B D"], params: MoeParams, config: FlashNextConfig, live_B: Bool[Array, " B"]
) -> Picks:
    """Picks each live row's experts."""
    expert, weight = route(x_BD, params.router, config.active_experts, config.normalise_picks)
    return Picks(expert_BA=jnp.where(live_B[:, None], expert, config.experts), weight_BA=weight)


def shared_expert(
    x_BD: Float[Array, "B D"], params: SharedExpertParams, config: FlashNextConfig
) -> Float[Array, "B D"]:
    """The expert that every row visits, times its gate."""
    hidden = (jax.nn.silu(linear(x_BD, params.gate)) * linear(x_BD, params.up))[:, : config.shared_ffn]
    return jax.nn.sigmoid(linear(x_BD, params.scale)[:, :1]) * linear(hidden, params.down)[:, : config.hidden]


def experts(
    x_BD: Float[Array, "B D"],
    picks: Picks,
    lines: ExpertLines,
    line_map: LineMap,
    shared: SharedExpertParams,
    config: FlashNextConfig,
    shards: Shards,
) -> Float[Array, "B D"]:
    """Runs the picked experts through the line map and sums them by the leaf tree, the shared expert in the last leaf.

    A rank runs its own experts and sums its own leaves, a whole sub-tree; the roots meet in `tree_psum`.
    """
    place = rank(shards.ranks)
    local_BA = picks.expert_BA - place * shards.experts
    local_BA = jnp.where((local_BA >= 0) & (local_BA < shards.experts), local_BA, shards.experts)
    out = expert_matmul(x_BD, local_BA, lines, line_map, config.expert_ffn)
    shared_out = shared_expert(x_BD, shared, config)
    leaves, last = config.leaves // shards.ranks, place == shards.ranks - 1
    root = combine(out, picks.weight_BA, local_BA, shared_out, shards.experts, leaves, last)
    return tree_psum(root, shards.ranks)
