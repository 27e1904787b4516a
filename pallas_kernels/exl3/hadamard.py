"""Traced: the 128-point rotation on both sides of W_q, in one fixed order of float32 additions.

Only elementwise additions and products, so a row's bits depend on that row alone. Barriers keep a product from being
fused into the addition after it, and a rounding to float16 from being skipped. Read next: reference.py.
"""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float16, Float32

from pallas_kernels.exl3.weight import BLOCK

OperandDtype = Literal["float16", "float32"]
# 1/sqrt(128) with the digits that the format's reference spells.
SCALE = np.float32(0.088388347648)


def rotate(x: Float32[Array, "... C"]) -> Float32[Array, "... C"]:
    """Multiplies every block of 128 channels by H, H[i, j] = (-1)^popcount(i & j) / sqrt(128), its own inverse.

    Butterflies (a + b, a - b) at strides 1, 2, 4, ..., 64, one float32 addition each; the factor comes last.

    Args:
      x: float32, the last axis a multiple of 128.
    Returns: float32, the shape of `x`.
    Raises: ValueError where the last axis is not a multiple of 128.
    """
    if x.shape[-1] % BLOCK:
        raise ValueError(f"rotate: {x.shape[-1]} channels, not a multiple of {BLOCK}")
    shape, stride = x.shape, 1
    while stride < BLOCK:
        pairs = x.reshape(*shape[:-1], shape[-1] // (2 * stride), 2, stride)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        x = jnp.stack([first + second, first - second], axis=-2).reshape(shape)
        stride *= 2
    return x * SCALE


def rotate_input(
    x: Float[Array, "... K"], suh: Float16[Array, "*rows K"], operand_dtype: OperandDtype = "float16"
) -> Float[Array, "... K"]:
    """The operand of the dot: H(x * suh).

    float16: x and the product are rounded to float16, the rotation runs in float32, its result is rounded to float16.
    float32: nothing is rounded to float16.

    Args:
      x: any float dtype, K a multiple of 128. suh: one vector, or one a row (any shape that broadcasts to x's).
    Returns: the operand dtype, the shape of `x`.
    Raises: ValueError where K is not a multiple of 128 or the operand dtype is unknown.
    """
    require_operand_dtype(operand_dtype)
    suh = jnp.broadcast_to(suh, x.shape)
    if operand_dtype == "float32":
        return rotate(lax.optimization_barrier(x.astype(jnp.float32) * suh.astype(jnp.float32)))
    scaled = lax.optimization_barrier(x.astype(jnp.float32).astype(jnp.float16) * suh)
    return lax.optimization_barrier(rotate(scaled.astype(jnp.float32)).astype(jnp.float16))


def rotate_output(
    sums: Float32[Array, "... N"], svh: Float16[Array, "*rows N"], bias: Float16[Array, "*rows N"] | None = None
) -> Float32[Array, "... N"]:
    """The layer's output from the dot's: H(sums) * svh + bias, all float32.

    Args:
      sums: float32, N a multiple of 128. svh, bias: one vector, or one a row (any shape that
        broadcasts to that of sums).
    Returns: float32, the shape of `sums`.
    Raises: ValueError where N is not a multiple of 128.
    """
    rotated = lax.optimization_barrier(rotate(sums))
    y = rotated * jnp.broadcast_to(svh, sums.shape).astype(jnp.float32)
    if bias is None:
        return y
    return lax.optimization_barrier(y) + jnp.broadcast_to(bias, sums.shape).astype(jnp.float32)


def require_operand_dtype(operand_dtype: str) -> None:
    """Raises ValueError where `operand_dtype` is neither "float16" nor "float32"."""
    if operand_dtype not in ("float16", "float32"):
        raise ValueError(f"exl3: no operand dtype {operand_dtype!r}, wanted 'float16' or 'float32'")
