"""Traced: the two halves of a sum of exponentials over a vocabulary. Definition: reference.py.

Devices that hold consecutive slices of a vocabulary, cut at whole blocks, call `block_sums` with the row's maximum
over all slices, gather the partial sums in order, and call `join_sums` each: the same bits for any number of slices.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float32

from pallas_kernels.vocabulary_sums.reference import block_sums_reference, join_sums_reference


def block_sums(logits_BV: Float32[Array, "B V"], ceiling_B: Float32[Array, "B"]) -> Float32[Array, "B N"]:
    """Returns sum(exp(logits - ceiling)) of each block of 128 columns, N = ceil(V / 128), by a halving tree.

    Args:
      logits_BV: float32; -inf adds zero, which is how columns beyond the vocabulary are left out.
      ceiling_B: the row's maximum over the whole vocabulary.
    Raises: ValueError where the logits are not float32 rows with at least one column.
    """
    if logits_BV.ndim != 2 or logits_BV.dtype != jnp.float32 or not logits_BV.shape[1]:
        raise ValueError(f"block_sums: logits are {logits_BV.dtype} {logits_BV.shape}, not float32 [B, V]")
    return block_sums_reference(logits_BV, ceiling_B)


def join_sums(sums_BN: Float32[Array, "B N"]) -> Float32[Array, "B"]:
    """Adds the partial sums of all blocks, in block order, padded with zeros to a power of two, by a halving tree.

    Zero blocks behind the last, as devices pad their slices with, do not change the bits.
    Raises: ValueError where there is no block.
    """
    if sums_BN.ndim != 2 or not sums_BN.shape[1]:
        raise ValueError(f"join_sums: partial sums have shape {sums_BN.shape}, not [B, N] with N of 1 or more")
    return join_sums_reference(sums_BN)
