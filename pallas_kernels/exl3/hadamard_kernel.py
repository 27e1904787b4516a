"""Traced: the two rotations as Pallas kernels, for the Triton lowering; equal to hadamard.py bit for bit.

A program holds one block of 128 channels of a row tile. A butterfly splits the last axis, of size 2, and the result is
turned so that the next stride comes last: after seven turns the channels are back in order. Read next: kernel.py.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float, Float16, Float32

from pallas_kernels.exl3.hadamard import SCALE, OperandDtype
from pallas_kernels.exl3.weight import BLOCK
from pallas_kernels.row_tiles import ROW_TILE

_STAGES = 7
_PARAMS = plt.CompilerParams(num_warps=4, num_stages=1)


def rotate_input_kernel(
    x_PK: Float[Array, "P K"], suh_K: Float16[Array, "K"], operand_dtype: OperandDtype, *, interpret: bool = False
) -> Float[Array, "P K"]:
    """hadamard.rotate_input of P rows, P a multiple of 16, with one scale vector."""
    return _call(partial(_input_body, dtype=jnp.dtype(operand_dtype)), (x_PK, suh_K), operand_dtype, interpret)


def rotate_output_kernel(
    sums_PN: Float32[Array, "P N"],
    svh_N: Float16[Array, "N"],
    bias_N: Float16[Array, "N"] | None,
    *,
    interpret: bool = False,
) -> Float32[Array, "P N"]:
    """hadamard.rotate_output of P rows, P a multiple of 16, with one scale vector."""
    vectors = (svh_N,) if bias_N is None else (svh_N, bias_N)
    return _call(partial(_output_body, interpret=interpret), (sums_PN, *vectors), "float32", interpret)


def _call(body, arrays: tuple, dtype: str, interpret: bool):
    """Runs `body` on [16, 128] blocks of the first array and the matching 128 entries of the others."""
    rows, channels = arrays[0].shape
    block = pl.BlockSpec((ROW_TILE, BLOCK), lambda m, c: (m, c))
    return pl.pallas_call(
        body,
        grid=(rows // ROW_TILE, channels // BLOCK),
        in_specs=[block] + [pl.BlockSpec((BLOCK,), lambda m, c: (c,))] * (len(arrays) - 1),
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct((rows, channels), jnp.dtype(dtype)),
        compiler_params=_PARAMS,
        interpret=interpret,
        name="exl3_rotation",
    )(*arrays)


def _input_body(x_ref, suh_ref, y_ref, *, dtype) -> None:
    """x_ref: [16, 128] float. suh_ref: [128] float16. y_ref: [16, 128] operand dtype. All global."""
    suh = jnp.broadcast_to(suh_ref[...].astype(dtype)[None, :], x_ref.shape)
    scaled = x_ref[...].astype(jnp.float32).astype(dtype) * suh
    y_ref[...] = _rotate(scaled.astype(jnp.float32)).astype(dtype)


def _output_body(sums_ref, svh_ref, *rest, interpret: bool) -> None:
    """sums_ref, y_ref: [16, 128] float32. svh_ref, bias_ref (where there is one): [128] float16. All global."""
    *bias_ref, y_ref = rest
    rotated = _rotate(sums_ref[...])
    if interpret:  # XLA would move the rotation's factor past svh; Triton does not, and knows no barrier
        rotated = lax.optimization_barrier(rotated)
    y = rotated * _row(svh_ref, y_ref.shape)
    y_ref[...] = y + _row(bias_ref[0], y_ref.shape) if bias_ref else y


def _row(ref, shape: tuple[int, ...]):
    return jnp.broadcast_to(ref[...].astype(jnp.float32)[None, :], shape)


def _rotate(x):
    """hadamard.rotate of [16, 128] float32."""
    for _ in range(_STAGES):
        first, second = jnp.unstack(x.reshape(ROW_TILE, BLOCK // 2, 2), axis=-1)
        x = jnp.stack([first + second, first - second], axis=-1).transpose(0, 2, 1).reshape(ROW_TILE, BLOCK)
    return x * SCALE
