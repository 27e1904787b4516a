"""Traced: rows times a weight of any kind, all rows in one dot. Read next: norms.py, positions.py."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels.dense_matmul import Selected, Weight, features
from pallas_kernels.exl3 import DecodedWeight, Exl3Weight
from pallas_kernels.exl3.hadamard import rotate_input, rotate_output
from pallas_kernels.exl3.trellis import decode_transposed


def linear(x: Float[Array, "... I"], weight: Weight, outputs: int) -> Float[Array, "... O"]:
    """x @ weight.T: operands in the weight's dtype, sums and result in that of x.

    An EXL3 weight multiplies as its format says, its trellis decoded whole first. One that is wider than the layer on
    either side meets rows extended by zeros, and its outputs are cut.

    Args:
      x: float32 or float64, any leading axes. weight: one layer. outputs: O, what the layer yields.
    Raises: ValueError where x is wider than the weight, or the weight is plain and narrower than `outputs`.
    """
    stored_in, stored_out = features(weight)
    if isinstance(weight, Selected):
        raise ValueError("linear: columns of a layer dealt over devices; these functions take the tree of one device")
    plain = not isinstance(weight, Exl3Weight | DecodedWeight)
    if x.shape[-1] > stored_in or outputs > stored_out or (plain and x.shape[-1] != stored_in):
        raise ValueError(f"linear: {x.shape[-1]} to {outputs} features, but the weight has {stored_in} to {stored_out}")
    if plain:
        return dot(x.astype(weight.dtype), weight, x.dtype)[..., :outputs]
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, stored_in - x.shape[-1])])
    return _exl3_linear(padded, weight)[..., :outputs].astype(x.dtype)


def dot(x: Float[Array, "... I"], weight_OI: Float[Array, "O I"], sums: jnp.dtype) -> Float[Array, "... O"]:
    """Contracts the last axes of operands of one dtype; accumulates in `sums`."""
    exact = weight_OI.dtype in (jnp.float32, jnp.float64)
    return lax.dot_general(
        x,
        weight_OI,
        (((x.ndim - 1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST if exact else None,
        preferred_element_type=sums,
    )


def _exl3_linear(x: Float[Array, "... K"], weight: Exl3Weight | DecodedWeight) -> Float[Array, "... N"]:
    wq_NK = weight.wq if isinstance(weight, DecodedWeight) else decode_transposed(weight)
    operand = rotate_input(x, weight.suh, "float32" if wq_NK.dtype == jnp.float32 else "float16")
    return rotate_output(dot(operand, wq_NK, jnp.dtype(jnp.float32)), weight.svh, weight.bias)


def cast_up(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x in the dtype that streams have: float32, or float64 where x is that already."""
    return x if x.dtype == jnp.float64 else x.astype(jnp.float32)
