"""Traced: root mean square norms over the last axis, float32 throughout."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def inverse_rms(x: Float[Array, "... D"], eps: float) -> Float[Array, "... 1"]:
    """Computes 1 / sqrt(mean(x^2) + eps)."""
    return jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + jnp.float32(eps))


def inverse_norm(x: Float[Array, "... D"], eps: float) -> Float[Array, "... 1"]:
    """Computes 1 / sqrt(sum(x^2) + eps)."""
    return jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + jnp.float32(eps))
