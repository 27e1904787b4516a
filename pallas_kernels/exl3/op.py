"""Traced: the linear layer of an EXL3 weight, the name that models import. Read next: reference.py, kernel.py."""

import math
from typing import Literal

import jax
from jaxtyping import Array, Float, Float32

from pallas_kernels.exl3.hadamard import OperandDtype, require_operand_dtype
from pallas_kernels.exl3.kernel import linear_kernel
from pallas_kernels.exl3.reference import linear_reference
from pallas_kernels.exl3.tuning import blocks_for
from pallas_kernels.exl3.weight import BLOCK, DecodedWeight, Exl3Weight


def linear(
    x: Float[Array, "... K"],
    weight: Exl3Weight | DecodedWeight,
    *,
    operand_dtype: OperandDtype | None = None,
    implementation: Literal["pallas", "reference"] | None = None,
    interpret: bool = False,
) -> Float32[Array, "... N"]:
    """Multiplies rows by a quantized matrix.

    y = H(H(x * suh) @ W_q) * svh + bias, with H the 128-point rotation of each block of channels and W_q the decoded
    trellis. Rows are computed in tiles of 16, so a row's bits depend on that row alone. As served, x is rounded to
    float16, and so are its product with suh and its rotation; sums and everything after them are float32.

    Args:
      x: rows of activations, any float dtype and any leading axes, K = weight.in_features.
      weight: one layer. operand_dtype: of the dot; "float32" is exact mode, where nothing is rounded to float16; None
        is "float32" for a DecodedWeight with float32 values and "float16" for any other.
      implementation: None picks "pallas" for an Exl3Weight on a GPU and "reference" elsewhere.
      interpret: runs the Pallas kernel in its interpreter, for tests.
    Returns: float32; the caller casts.
    Raises: ValueError where K is not a multiple of 128 or not the weight's, for stacked weights, for an unknown
      implementation or operand dtype, where a DecodedWeight is asked for "pallas" or a float32 one for "float16", and
      where "reference" is asked to interpret.
    Source: the EXL3 format of exllamav3 (doc/exl3.md); QTIP, arXiv 2406.11235.
    """
    operand_dtype = _operand_dtype(weight, operand_dtype)
    _check_shapes(x, weight)
    default = "pallas" if isinstance(weight, Exl3Weight) and jax.default_backend() == "gpu" else "reference"
    x_MK = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    match implementation or default:
        case "pallas":
            if isinstance(weight, DecodedWeight):
                raise ValueError("linear: a DecodedWeight has no trellis for implementation 'pallas'")
            y_MN = linear_kernel(x_MK, weight, operand_dtype, blocks_for(weight), interpret=interpret)
        case "reference":
            if interpret:
                raise ValueError("linear: interpret goes with implementation 'pallas'")
            y_MN = linear_reference(x_MK, weight, operand_dtype)
        case unknown:
            raise ValueError(f"linear: no implementation {unknown!r}, wanted 'pallas' or 'reference'")
    return y_MN.reshape(*x.shape[:-1], weight.out_features)


def _operand_dtype(weight: Exl3Weight | DecodedWeight, operand_dtype: str | None) -> OperandDtype:
    exact = isinstance(weight, DecodedWeight) and weight.wq.dtype == "float32"
    if operand_dtype is None:
        return "float32" if exact else "float16"
    require_operand_dtype(operand_dtype)
    if exact and operand_dtype == "float16":
        raise ValueError("linear: a float32 DecodedWeight means exact mode, but operand_dtype is 'float16'")
    return "float32" if operand_dtype == "float32" else "float16"


def _check_shapes(x: Float[Array, "... K"], weight: Exl3Weight | DecodedWeight) -> None:
    if x.shape[-1] % BLOCK:
        raise ValueError(f"linear: {x.shape[-1]} in features, not a multiple of {BLOCK}")
    if weight.suh.ndim != 1:
        raise ValueError(f"linear: a stack of weights (suh {list(weight.suh.shape)}), wanted one layer")
    if x.shape[-1] != weight.in_features:
        raise ValueError(f"linear: {x.shape[-1]} in features, but the weight has {weight.in_features}")
