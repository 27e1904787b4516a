"""Traced: rotary position embedding, half-split pairs, the leading dimensions of a head only.

Pair j holds dimensions j and j + R/2; the rest of the head passes through. Angles are float32.
Source: RoFormer, arXiv 2104.09864.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pallas_kernels.shapes import trailing


def inverse_frequencies(rotary_size: int, theta: float) -> np.ndarray:
    """theta^(-2j/R) for j below R/2, float32."""
    exponents = np.arange(0, rotary_size, 2, dtype=np.float64) / rotary_size
    return (theta**-exponents).astype(np.float32)


def rotate(
    x: Float[Array, "B H K"], position_B: Int[Array, " B"], rotary_size: int, theta: float
) -> Float[Array, "B H K"]:
    """Turns the first `rotary_size` dimensions of every head by the row's position. float32 in and out."""
    half = rotary_size // 2
    frequencies = jnp.asarray(inverse_frequencies(rotary_size, theta))[None, :]
    angle = trailing(position_B.astype(jnp.float32), 1) * frequencies
    cos, sin = jnp.cos(angle)[:, None, :], jnp.sin(angle)[:, None, :]
    low, high = x[..., :half], x[..., half:rotary_size]
    turned = [low * cos - high * sin, high * cos + low * sin, x[..., rotary_size:]]
    return jnp.concatenate(turned, axis=-1)
