"""Traced: what depends on where a row stands: rotary embedding and causal convolution. Read next: residual.py."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.rope import inverse_frequencies


def positions(count: int) -> Int[Array, " T"]:
    """0 .. count - 1, int32."""
    return jnp.arange(count, dtype=jnp.int32)


def rotate(
    x_THK: Float[Array, "T H K"], position_T: Int[Array, " T"], rotary_size: int, theta: float
) -> Float[Array, "T H K"]:
    """Turns the first `rotary_size` dimensions of every head, in half-split pairs; the rest passes through.

    Source: RoFormer, arXiv 2104.09864.
    """
    half = rotary_size // 2
    frequency = jnp.asarray(inverse_frequencies(rotary_size, theta), x_THK.dtype)
    angle = position_T.astype(x_THK.dtype)[:, None, None] * frequency[None, None, :]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    low, high = x_THK[..., :half], x_THK[..., half:rotary_size]
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin, x_THK[..., rotary_size:]], axis=-1)


def causal_convolution(
    x_TC: Float[Array, "T C"], weight_CK: Float[Array, "C taps"], dilation: int
) -> Float[Array, "T C"]:
    """y[t] = sum_j weight[:, j] * x[t - dilation * (taps-1-j)], rows before the start being zero."""
    rows, taps = x_TC.shape[0], weight_CK.shape[1]
    weight = weight_CK.astype(x_TC.dtype)
    padded = jnp.pad(x_TC, (((taps - 1) * dilation, 0), (0, 0)))
    total = padded[:rows] * weight[None, :, 0]
    for tap in range(1, taps):
        total = total + padded[tap * dilation : tap * dilation + rows] * weight[None, :, tap]
    return total
