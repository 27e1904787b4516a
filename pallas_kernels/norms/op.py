"""Traced: the norms that the model imports. The two weight conventions are two functions, never a flag."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.norms.reference import inverse_norm, inverse_rms
from pallas_kernels.shapes import over_rows


def centred_rms(x: Float[Array, "... D"], weight: Float[Array, "*#W"], eps: float) -> Float[Array, "... D"]:
    """x / sqrt(mean(x^2) + eps) * (1 + weight): the stored weight lies around zero.

    Args: x: float32. weight: its shape ends the shape of x; any float dtype. Returns: float32.
    """
    return x * inverse_rms(x, eps) * over_rows(jnp.float32(1) + weight.astype(jnp.float32), x)


def plain_rms(x: Float[Array, "... D"], weight: Float[Array, " D"], eps: float) -> Float[Array, "... D"]:
    """x / sqrt(mean(x^2) + eps) * weight: the stored weight lies around one."""
    return x * inverse_rms(x, eps) * over_rows(weight.astype(jnp.float32), x)


def l2_normalise(x: Float[Array, "... D"], eps: float = 1e-6) -> Float[Array, "... D"]:
    """x / sqrt(sum(x^2) + eps)."""
    return x * inverse_norm(x, eps)
