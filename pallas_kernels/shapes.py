"""Traced: two reshapes that ops share, so that no op relies on implicit rank promotion."""

import jax
from jaxtyping import Array


def over_rows(weight: Array, x: Array) -> Array:
    """Gives `weight`, whose shape ends the shape of `x`, as many axes as `x` has."""
    return weight.reshape((1,) * (x.ndim - weight.ndim) + weight.shape)


def trailing(x: Array, axes: int) -> Array:
    """Appends `axes` axes of one to `x`."""
    return jax.lax.expand_dims(x, range(x.ndim, x.ndim + axes))
