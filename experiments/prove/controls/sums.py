"""Traced: wrong twins of what is split over devices and of the sums that cross them. Read next: vocabulary.py."""

import jax
import jax.numpy as jnp

from experiments.prove.controls.control import Control, Plant, planted
from experiments.prove.controls.definitions import norm_sums
from experiments.prove.controls.ranks import four_ranks, two_ranks
from fnx_jax import collectives
from fnx_jax.axes import RANKS
from fnx_jax.families.flash_next import moe, sparse_attention
from pallas_kernels import leaf_tree
from pallas_kernels.dense_matmul import linear
from pallas_kernels.leaf_tree import op as leaf_op
from pallas_kernels.norms import reference as norms

COMBINE = leaf_tree.combine


def bare_psum(root_BD, ranks):
    """Leaves the order of the roots to the collective."""
    return root_BD if ranks == 1 else jax.lax.psum(root_BD, RANKS)


def tree_from_own_rank(root_BD, ranks):
    """Finishes the tree on every rank with its own root first."""
    if ranks == 1:
        return root_BD
    roots = jax.lax.all_gather(root_BD, RANKS, axis=1)
    return leaf_tree.balanced_sum(jnp.roll(roots, -jax.lax.axis_index(RANKS), axis=1))


def library_sum(parts):
    """The library's sum of the leaves."""
    return jnp.sum(parts, axis=1)


def shared_in_the_first_rank(out, weight, expert, shared, experts, leaves, joins=True):
    """The shared expert joins the last leaf of rank 0, wherever the last leaf of all lies."""
    first = jax.lax.axis_index(RANKS) == 0 if isinstance(joins, jax.Array) else joins
    return COMBINE(out, weight, expert, shared, experts, leaves, first)


def split_by_inputs(out_BHK, gate_BHK, params, config, shards):
    """Multiplies a rank's own heads by their columns of the output projection, and sums over ranks."""
    heads = (out_BHK * jax.nn.sigmoid(gate_BHK)).reshape(out_BHK.shape[0], -1)
    if shards.ranks == 1:
        return linear(heads, params.o)[:, : config.hidden]
    first = jax.lax.axis_index(RANKS) * heads.shape[1]
    own = jax.lax.dynamic_slice_in_dim(params.o, first, heads.shape[1], axis=1)
    return jax.lax.psum(linear(heads, own)[:, : config.hidden], RANKS)


def library_product_sum(a, b, axis=-1):
    """The library's sum of squares, in whatever order the loop around it suggests."""
    return jnp.sum(a * b, axis=axis)


CONTROLS: tuple[Control, ...] = (
    planted(
        "bare_psum",
        "5",
        "the roots of the expert tree meet in a psum",
        four_ranks,
        Plant(moe, "tree_psum", bare_psum),
    ),
    planted(
        "tree_from_own_rank",
        "5",
        "each rank finishes the expert tree beginning with its own root",
        four_ranks,
        Plant(moe, "tree_psum", tree_from_own_rank),
    ),
    planted(
        "library_sum_of_leaves",
        "3.5",
        "a library sum over the leaves instead of the balanced tree",
        two_ranks,
        Plant(leaf_op, "balanced_sum", library_sum),
        Plant(collectives, "balanced_sum", library_sum),
    ),
    planted(
        "shared_expert_in_another_leaf",
        "5",
        "the shared expert joins the last leaf of the first rank",
        two_ranks,
        Plant(moe, "combine", shared_in_the_first_rank),
    ),
    planted(
        "output_projection_split_by_inputs",
        "5",
        "attention's output projection is split over its inputs and summed over ranks",
        two_ranks,
        Plant(sparse_attention, "attention_output", split_by_inputs),
    ),
    planted(
        "library_sum_in_norms",
        "3.3",
        "norms add squares in the library's order",
        norm_sums,
        Plant(norms, "product_sum", library_product_sum),
    ),
)
