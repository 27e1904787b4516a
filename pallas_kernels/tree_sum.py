"""Traced: float sums in an order that is written down.

A compiler may reorder its own reductions to use vector units, and does so or not depending on what it fuses them
with. Adds that stand in the program as adds are never reordered.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def tree_sum(x: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """Sums one axis by adding its upper half to its lower half until one entry is left.

    +0.0 fills the axis up to a power of two.

    Returns: x without the axis.
    """
    axis %= x.ndim
    size = x.shape[axis]
    width = 1 << max(size - 1, 0).bit_length()
    if width != size:
        fill = [(0, width - size if a == axis else 0) for a in range(x.ndim)]
        x = jnp.pad(x, fill)
    while width > 1:
        width //= 2
        low = jax.lax.slice_in_dim(x, 0, width, axis=axis)
        x = low + jax.lax.slice_in_dim(x, width, 2 * width, axis=axis)
    return jax.lax.squeeze(x, (axis,))


def product_sum(a: Float[Array, "..."], b: Float[Array, "..."], axis: int = -1) -> Float[Array, "..."]:
    """tree_sum of a * b, every product rounded before it is added."""
    return tree_sum(jax.lax.optimization_barrier(a * b), axis)
