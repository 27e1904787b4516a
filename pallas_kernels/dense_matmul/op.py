"""Traced: `linear`, which multiplies rows by a weight of any kind the checkpoints hold."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from pallas_kernels import exl3
from pallas_kernels.dense_matmul.reference import tile_matmul
from pallas_kernels.exl3.weight import BLOCK, TILE
from pallas_kernels.row_tiles import row_dot


@struct.dataclass
class Selected:
    """An EXL3 layer of which some columns are wanted: columns [n] int32, their places among the layer's outputs.

    A rotation mixes 128 outputs, so whole blocks are multiplied and the columns are picked afterwards.
    """

    weight: exl3.Exl3Weight | exl3.DecodedWeight
    columns: jax.Array


Weight = jax.Array | exl3.Exl3Weight | exl3.DecodedWeight | Selected
"""A plain [out, in] array, a packed EXL3 layer, one whose trellis was decoded at load, or columns of one."""


def features(weight: Weight) -> tuple[int, int]:
    """Inputs and outputs of a weight of any kind, as stored: an EXL3 one counts its padding."""
    if isinstance(weight, Selected):
        return weight.weight.in_features, weight.columns.shape[-1]
    if isinstance(weight, exl3.Exl3Weight | exl3.DecodedWeight):
        return weight.in_features, weight.out_features
    return weight.shape[1], weight.shape[0]


def leading_outputs(weight: Weight, outputs: int) -> Weight:
    """The layer that yields the first `outputs` of a weight's outputs. A whole EXL3 block of them is wanted or none.

    The whole weight is returned as it is. Raises: ValueError where an EXL3 layer would be cut inside a block, or picks
    its columns.
    """
    if features(weight)[1] <= outputs:
        return weight
    if isinstance(weight, Selected) or (not isinstance(weight, jax.Array) and outputs % BLOCK):
        raise ValueError(f"leading_outputs: {outputs} outputs of a layer that cannot be cut there")
    if isinstance(weight, jax.Array):
        return weight[:outputs]
    bias = None if weight.bias is None else weight.bias[:outputs]
    if isinstance(weight, exl3.DecodedWeight):
        return replace(weight, wq=weight.wq[:outputs], svh=weight.svh[:outputs], bias=bias)
    return replace(weight, words=weight.words[:, : outputs // TILE], svh=weight.svh[:outputs], bias=bias)


def dense_matmul(x: Float[Array, "... I"], weight_OI: Float[Array, "O I"]) -> Float[Array, "... O"]:
    """x @ weight.T in the weight's dtype with float32 accumulators, in heights as `row_dot` says.

    Raises: ValueError where the last axes differ.
    """
    if x.shape[-1] != weight_OI.shape[-1]:
        raise ValueError(f"dense_matmul: {x.shape[-1]} features meet a weight of {weight_OI.shape[-1]}")
    rows = x.reshape(-1, x.shape[-1]).astype(weight_OI.dtype)
    out = row_dot(lambda tile: tile_matmul(tile, weight_OI), rows, weight_OI.shape[0])
    return out.reshape(*x.shape[:-1], weight_OI.shape[0])


def linear(x: Float[Array, "... I"], weight: Weight) -> Float[Array, "... O"]:
    """Multiplies rows by a weight of any kind; float32 out.

    An EXL3 weight may be wider than the layer on both sides: narrow rows are extended by zeros, and the caller cuts
    the outputs it does not know.
    """
    if isinstance(weight, Selected):
        return linear(x, weight.weight)[..., weight.columns]
    if not isinstance(weight, exl3.Exl3Weight | exl3.DecodedWeight):
        return dense_matmul(x, weight)
    missing = weight.in_features - x.shape[-1]
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x
    return exl3.linear(padded, weight)
