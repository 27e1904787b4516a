"""Traced: the linear layer by its definition, with W_q decoded whole or beforehand. CPUs are served by it.

Read next: op.py, which picks between this and kernel.py.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32

from pallas_kernels.exl3.hadamard import OperandDtype, rotate_input, rotate_output
from pallas_kernels.exl3.trellis import decode_transposed
from pallas_kernels.exl3.weight import DecodedWeight, Exl3Weight
from pallas_kernels.row_tiles import row_dot

__all__ = ["dot_rows", "linear_reference", "rotate_input", "rotate_output"]


def linear_reference(
    x_MK: Float[Array, "M K"], weight: Exl3Weight | DecodedWeight, operand_dtype: OperandDtype
) -> Float32[Array, "M N"]:
    """y = H(H(x * suh) @ W_q) * svh + bias, the dot with float32 accumulators. See op.linear."""
    wq_NK = weight.wq if isinstance(weight, DecodedWeight) else decode_transposed(weight)
    operand_MK = rotate_input(x_MK, weight.suh, operand_dtype)
    return rotate_output(dot_rows(operand_MK, wq_NK), weight.svh, weight.bias)


def dot_rows(operand_MK: Float[Array, "M K"], wq_NK: Float[Array, "N K"]) -> Float32[Array, "M N"]:
    """operand @ wq.T in heights as `row_dot` says, float32 accumulators.

    W_q takes the operand's dtype, which loses nothing: its values are float16. Outputs come first because CPU dots of
    that layout give a column the same bits in any block of columns.
    """
    wq_NK = wq_NK.astype(operand_MK.dtype)

    def dot(tile_MK: Float[Array, "B K"]) -> Float32[Array, "B N"]:
        axes = (((1,), (1,)), ((), ()))
        return lax.dot_general(
            tile_MK, wq_NK, axes, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
        )

    return row_dot(dot, operand_MK, wq_NK.shape[0])
