"""Traced: what crosses devices. Copies in rank order, and one sum whose order knows no device.

Every function takes the number of ranks; with one it is the identity, or the sum's own definition.
"""

import jax
from jaxtyping import Array, Float, Shaped

from fnx_jax.axes import RANKS
from pallas_kernels.leaf_tree import balanced_sum


def gather_columns(x: Shaped[Array, "... O"], ranks: int) -> Shaped[Array, "... OR"]:
    """Lays every rank's columns side by side, in rank order. Copies only."""
    return x if ranks == 1 else jax.lax.all_gather(x, RANKS, axis=x.ndim - 1, tiled=True)


def tree_psum(root_BD: Float[Array, "B D"], ranks: int) -> Float[Array, "B D"]:
    """Finishes a balanced tree whose `ranks` sub-trees lie on the ranks: gathers the roots and adds neighbours.

    Every rank computes the same sum, in the order that one device has.
    """
    if ranks == 1:
        return root_BD
    return balanced_sum(jax.lax.all_gather(root_BD, RANKS, axis=1))


def rank(ranks: int) -> jax.Array | int:
    """This device's place among the ranks."""
    return 0 if ranks == 1 else jax.lax.axis_index(RANKS)
