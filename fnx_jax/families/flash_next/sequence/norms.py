"""Traced: the model's norms in the dtype of their rows, float32 or float64. Read next: positions.py."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels.shapes import over_rows


def unit_rms(x: Float[Array, "... D"], eps: float) -> Float[Array, "... D"]:
    """x / sqrt(mean(x^2) + eps)."""
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps)


def unit_length(x: Float[Array, "... D"], eps: float = 1e-6) -> Float[Array, "... D"]:
    """x / sqrt(sum(x^2) + eps)."""
    return x * lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + eps)


def centred_rms(x: Float[Array, "... D"], weight: Float[Array, "*#W"], eps: float) -> Float[Array, "... D"]:
    """unit_rms(x) * (1 + weight): the stored weight lies around zero; its shape ends that of x."""
    return unit_rms(x, eps) * over_rows(1 + weight.astype(x.dtype), x)


def grouped_rms(streams: Float[Array, "T N"], weight: Float[Array, " N"], n: int, eps: float) -> Float[Array, "T N"]:
    """centred_rms with one mean square for each of the n groups of the last axis."""
    grouped = streams.reshape(streams.shape[0], n, -1)
    return centred_rms(grouped, weight.reshape(n, -1), eps).reshape(streams.shape)
