"""Traced: root mean square norms over the last axis, float32 throughout."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.tree_sum import product_sum


def inverse_rms(x: Float[Array, "... D"], eps: float) -> Float[Array, "... 1"]:
    """Computes 1 / sqrt(mean(x^2) + eps)."""
    return jax.lax.rsqrt(product_sum(x, x)[..., None] / jnp.float32(x.shape[-1]) + jnp.float32(eps))


def inverse_norm(x: Float[Array, "... D"], eps: float) -> Float[Array, "... 1"]:
    """Computes 1 / sqrt(sum(x^2) + eps)."""
    return jax.lax.rsqrt(product_sum(x, x)[..., None] + jnp.float32(eps))
