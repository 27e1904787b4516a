"""Traced: wrong twins that every run shares: the order of ties, what is rounded, what is sorted."""

import jax
import jax.numpy as jnp

from experiments.prove.controls.control import Control, Plant, planted
from experiments.prove.controls.definitions import drawn_ties, expert_sums, kept_blocks, router_picks, widened_draws
from fnx_jax import vocabulary_slices
from fnx_jax.families.flash_next import moe
from fnx_jax.lanes import sampling
from pallas_kernels import sparse_attention as op
from pallas_kernels.leaf_tree import op as leaf_op

ROUTE, KEEP_BLOCKS, LEAF_SUMS, KEPT_CANDIDATES = moe.route, op.keep_blocks, leaf_op.leaf_sums, sampling.kept_candidates


def route_upwards(x_BD, gate_ED, active, normalise):
    """Numbers the experts from the last to the first, so that ties go to the higher id."""
    expert, weight = ROUTE(x_BD, gate_ED[::-1], active, normalise)
    return (gate_ED.shape[0] - 1 - expert)[:, ::-1], weight[:, ::-1]


def keep_upwards(score_BN, seen_B, keep):
    """Adds a little for a higher id, so that ties go to it."""
    block = jnp.arange(score_BN.shape[1], dtype=jnp.float32)[None, :]
    return KEEP_BLOCKS(jnp.where(score_BN >= 0, score_BN + jnp.float32(1e-4) * block, score_BN), seen_B, keep)


def last_largest(scores_BK, ids_BK):
    """The highest id among the largest scores."""
    return jnp.where(scores_BK == scores_BK.max(axis=1, keepdims=True), ids_BK, -1).max(axis=1)


def candidates_complete(scaled, params, count):
    """Takes what is kept among the first candidates for all that is kept."""
    *kept, complete_B = KEPT_CANDIDATES(scaled, params, count)
    return *kept, jnp.ones_like(complete_B)


def sums_rounded_late(out_BAD, weight_BA, expert_BA, experts, leaves):
    """Adds each product with the digits that rounding it would have dropped, as a fused multiply-add does."""
    low_BAD = _product_error(weight_BA[:, :, None] * jnp.ones_like(out_BAD), out_BAD)
    exact = LEAF_SUMS(out_BAD, weight_BA, expert_BA, experts, leaves)
    return exact + LEAF_SUMS(low_BAD, jnp.ones_like(weight_BA), expert_BA, experts, leaves)


def _product_error(a: jax.Array, b: jax.Array) -> jax.Array:
    """a * b less its rounded value, exactly: halves of 12 bits have exact products (Dekker)."""

    def halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        scaled = jax.lax.optimization_barrier(x * jnp.float32(4097))
        high = jax.lax.optimization_barrier(scaled - jax.lax.optimization_barrier(scaled - x))
        return high, x - high

    (a_high, a_low), (b_high, b_low) = halves(a), halves(b)
    rounded = jax.lax.optimization_barrier(a * b)
    return ((a_high * b_high - rounded) + a_high * b_low + a_low * b_high) + a_low * b_low


CONTROLS: tuple[Control, ...] = (
    planted(
        "router_ties_upwards",
        "3.3",
        "of experts with one weight the higher id is picked",
        router_picks,
        Plant(moe, "route", route_upwards),
    ),
    planted(
        "block_ties_upwards",
        "3.3",
        "of blocks with one score the higher is kept",
        kept_blocks,
        Plant(op, "keep_blocks", keep_upwards),
    ),
    planted(
        "draw_ties_upwards",
        "3.3",
        "of ids with one score the higher is drawn",
        drawn_ties,
        Plant(vocabulary_slices, "first_largest", last_largest),
    ),
    planted(
        "candidates_not_widened",
        "3.5",
        "a nucleus is cut off at the ids that were sorted first",
        widened_draws,
        Plant(sampling, "kept_candidates", candidates_complete),
    ),
    planted(
        "products_rounded_late",
        "5",
        "an expert's weighted output is rounded after it is added, not before",
        expert_sums,
        Plant(leaf_op, "leaf_sums", sums_rounded_late),
    ),
)
