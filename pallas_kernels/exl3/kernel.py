"""Traced: the linear layer for GPUs, three Pallas calls: rotate, multiply, rotate. Triton lowering.

Tiles are decoded inside the dot's loop. Read next: tile.py (the decoding), hadamard_kernel.py (the rotations),
tuning.py (the block sizes).
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float, Float32

from pallas_kernels.exl3.hadamard import OperandDtype
from pallas_kernels.exl3.hadamard_kernel import rotate_input_kernel, rotate_output_kernel
from pallas_kernels.exl3.tile import decode_block
from pallas_kernels.exl3.tuning import Blocks
from pallas_kernels.exl3.weight import TILE, Exl3Weight
from pallas_kernels.row_tiles import ROW_TILE, pad_rows, padded_rows

BLOCK_K = 64
"""Inputs of a step. Fixed for every layer and device, because it is the order of the sums."""


def linear_kernel(
    x_MK: Float[Array, "M K"],
    weight: Exl3Weight,
    operand_dtype: OperandDtype,
    blocks: Blocks,
    *,
    interpret: bool = False,
) -> Float32[Array, "M N"]:
    """y = H(H(x * suh) @ W_q) * svh + bias. See op.linear."""
    rows = x_MK.shape[0]
    x_PK = pad_rows(x_MK, ROW_TILE * _sub_tiles(rows, blocks))
    operand_PK = rotate_input_kernel(x_PK, weight.suh, operand_dtype, interpret=interpret)
    sums_PN = dot_kernel(operand_PK, weight, blocks, interpret=interpret)
    return rotate_output_kernel(sums_PN, weight.svh, weight.bias, interpret=interpret)[:rows]


def dot_kernel(
    operand_MK: Float[Array, "M K"], weight: Exl3Weight, blocks: Blocks, *, interpret: bool = False
) -> Float32[Array, "M N"]:
    """operand @ W_q with float32 accumulators, K in order in steps of BLOCK_K.

    A program owns block_n outputs of up to sub_tiles 16-row tiles; every dot is [16, BLOCK_K] x [BLOCK_K, block_n].

    Args:
      operand_MK: float16, or float32 for exact mode; any number of rows. weight: one layer.
    Returns: float32 [M, N].
    """
    rows, width = operand_MK.shape
    outputs, sub_tiles = weight.out_features, _sub_tiles(rows, blocks)
    program_rows = ROW_TILE * sub_tiles
    operand_PK = pad_rows(operand_MK, program_rows)
    sums_PN = pl.pallas_call(
        partial(_body, codebook=weight.codebook, block_n=blocks.block_n, sub_tiles=sub_tiles),
        grid=(outputs // blocks.block_n, operand_PK.shape[0] // program_rows),
        in_specs=[
            pl.BlockSpec((program_rows, width), lambda n, m: (m, 0)),
            pl.BlockSpec(weight.words.shape, lambda n, m: (0, 0, 0)),
        ],
        out_specs=pl.BlockSpec((program_rows, blocks.block_n), lambda n, m: (m, n)),
        out_shape=jax.ShapeDtypeStruct((operand_PK.shape[0], outputs), jnp.float32),
        compiler_params=plt.CompilerParams(num_warps=blocks.num_warps, num_stages=blocks.num_stages),
        interpret=interpret,
        name="exl3_dot",
    )(operand_PK, weight.words)
    return sums_PN[:rows]


def _sub_tiles(rows: int, blocks: Blocks) -> int:
    return min(blocks.sub_tiles, padded_rows(rows) // ROW_TILE)


def _body(x_ref, words_ref, y_ref, *, codebook: str, block_n: int, sub_tiles: int) -> None:
    """One program.

    x_ref: [16*sub_tiles, K] float16 or float32, global. words_ref: [K/16, N/16, 8*bits] uint32, global.
    y_ref: [16*sub_tiles, block_n] float32, global.
    """
    k_tiles, n_tiles = BLOCK_K // TILE, block_n // TILE
    words_per_tile = words_ref.shape[2]
    n = pl.program_id(0) * n_tiles + lax.broadcasted_iota(jnp.int32, (k_tiles, n_tiles, 32), 1)
    k = lax.broadcasted_iota(jnp.int32, (k_tiles, n_tiles, 32), 0)

    def step(i, sums):
        def load(index):
            index = jnp.broadcast_to(index[None, None, :], n.shape)
            return plt.load(words_ref.at[i * k_tiles + k, n, index])

        wq = decode_block(load, words_per_tile, codebook).astype(x_ref.dtype)
        span = pl.ds(i * BLOCK_K, BLOCK_K)
        return tuple(s + _dot(x_ref[pl.ds(ROW_TILE * t, ROW_TILE), span], wq) for t, s in enumerate(sums))

    zeros = jnp.zeros((ROW_TILE, block_n), jnp.float32)
    sums = lax.fori_loop(0, x_ref.shape[1] // BLOCK_K, step, (zeros,) * sub_tiles)
    for t, s in enumerate(sums):
        y_ref[pl.ds(ROW_TILE * t, ROW_TILE), :] = s


def _dot(x, wq):
    # float32 operands would be multiplied in TF32 without the precision.
    return jnp.dot(x, wq, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
