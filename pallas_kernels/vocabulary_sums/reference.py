"""Traced: the order in which a vocabulary's exponentials are added. Public edge: op.py."""

import jax.numpy as jnp
from jaxtyping import Array, Float32

from pallas_kernels.elementary import exp
from pallas_kernels.tree_sum import tree_sum

BLOCK = 128
"""Columns of one partial sum: the unit by which a vocabulary is split over devices."""


def block_sums_reference(logits_BV: Float32[Array, "B V"], ceiling_B: Float32[Array, "B"]) -> Float32[Array, "B N"]:
    """See `op.block_sums`."""
    rows, vocabulary = logits_BV.shape
    padding = -vocabulary % BLOCK
    padded_BV = jnp.pad(logits_BV, ((0, 0), (0, padding)), constant_values=-jnp.inf)
    return tree_sum(exp(padded_BV - ceiling_B[:, None]).reshape(rows, -1, BLOCK))


def join_sums_reference(sums_BN: Float32[Array, "B N"]) -> Float32[Array, "B"]:
    """See `op.join_sums`."""
    return tree_sum(sums_BN)
