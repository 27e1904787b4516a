"""Traced: rows times a weight of any kind, all rows in one `jnp.dot`. Read next: network.py."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pallas_kernels.dense_matmul import Selected, Weight
from pallas_kernels.exl3 import DecodedWeight, Exl3Weight
from pallas_kernels.exl3.weight import BLOCK


def linear(x: Float[Array, "B I"], weight: Weight, outputs: int) -> Float[Array, "B O"]:
    """x @ weight.T with operands as stored and float32 sums; an EXL3 weight's rotations are dots as well."""
    if isinstance(weight, Selected):
        return linear(x, weight.weight, weight.weight.out_features)[:, weight.columns]
    if isinstance(weight, DecodedWeight):
        padded = jnp.pad(x, ((0, 0), (0, weight.in_features - x.shape[1]))).astype(jnp.float16)
        operand = _rotated((padded * weight.suh[None, :]).astype(jnp.float32)).astype(weight.wq.dtype)
        out = _rotated(bare(operand, weight.wq)) * weight.svh.astype(jnp.float32)[None, :]
        return (out if weight.bias is None else out + weight.bias.astype(jnp.float32)[None, :])[:, :outputs]
    assert not isinstance(weight, Exl3Weight), "packed weights are decoded before they are measured"
    return bare(x.astype(weight.dtype), weight)[:, :outputs]


def bare(x: Float[Array, "B I"], weight_OI: Float[Array, "O I"]) -> Float[Array, "B O"]:
    """One `jnp.dot`, operands as they come."""
    return jnp.dot(x, weight_OI.T, preferred_element_type=jnp.float32)


def _rotated(x: Float[Array, "B C"]) -> Float[Array, "B C"]:
    bits = np.arange(BLOCK)
    signs = (-1.0) ** np.bitwise_count(bits[:, None] & bits[None, :])
    matrix = jnp.asarray(signs / np.sqrt(BLOCK), jnp.float32)
    return jnp.dot(x.reshape(-1, BLOCK), matrix, precision=jax.lax.Precision.HIGHEST).reshape(x.shape)
