"""Traced: the expert sum as a fixed tree.

Leaf l starts at +0.0 and adds, in id order, the weighted outputs of its E/L consecutive experts, each product rounded
to float32 first; the shared expert joins the last leaf; neighbours are added pairwise until one is left.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.row_tiles import ROW_TILE


def leaf_sums(
    out_BAD: Float[Array, "B A D"],
    weight_BA: Float[Array, "B A"],
    expert_BA: Int[Array, "B A"],
    experts: int,
    leaves: int,
) -> Float[Array, "B l D"]:
    """Folds each row's slots into its leaves. expert_BA ascends along A; an id of `experts` or more adds nothing."""
    rows = jnp.arange(out_BAD.shape[0])
    per_leaf = experts // leaves
    total = jnp.zeros((out_BAD.shape[0], leaves, out_BAD.shape[2]), jnp.float32)
    for slot in range(out_BAD.shape[1]):
        product = jax.lax.optimization_barrier(weight_BA[:, slot, None] * out_BAD[:, slot])
        total = total.at[rows, expert_BA[:, slot] // per_leaf].add(product, mode="drop", unique_indices=True)
    # Fenced: what a caller adds to the leaves would otherwise become where the sums start.
    return jax.lax.optimization_barrier(total)


def balanced_sum(parts: Float[Array, "B l D"]) -> Float[Array, "B D"]:
    """Adds neighbours pairwise until one is left; l is a power of two."""
    while parts.shape[1] > 1:
        parts = parts[:, 0::2] + parts[:, 1::2]
    return parts[:, 0]


def combine(
    out_BAD: Float[Array, "B A D"],
    weight_BA: Float[Array, "B A"],
    expert_BA: Int[Array, "B A"],
    shared_BD: Float[Array, "B D"],
    experts: int,
    leaves: int,
    joins: Bool[Array, ""] | bool = True,
) -> Float[Array, "B D"]:
    """The sum of a row's routed experts and, where it joins, the gated shared expert: a whole tree or a sub-tree.

    joins: whether this sub-tree holds the last leaf of all. Whole tiles of rows are summed one by one: leaves take
    room.
    """
    rows = out_BAD.shape[0]
    if rows > ROW_TILE and rows % ROW_TILE == 0:
        data = (out_BAD, weight_BA, expert_BA, shared_BD)
        tiles = jax.tree.map(lambda a: a.reshape(-1, ROW_TILE, *a.shape[1:]), data)
        sums = jax.lax.map(lambda tile: combine(*tile, experts=experts, leaves=leaves, joins=joins), tiles)
        return sums.reshape(rows, -1)
    total = leaf_sums(out_BAD, weight_BA, expert_BA, experts, leaves)
    return balanced_sum(jnp.where(joins, total.at[:, -1].add(shared_BD), total))
