"""Traced side: the order in which a vocabulary's exponentials are added. Public edge: op.py."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32

BLOCK = 128
"""Columns of one partial sum: the unit by which a vocabulary is split over devices."""


def halving_sum(x: Float32[Array, "... N"]) -> Float32[Array, "..."]:
    """Adds the last axis, a power of two long, by adding its second half to its first until one entry is left.

    Written out as additions, because the order of a library sum is the compiler's choice. Zeros appended behind,
    up to a longer power of two, do not change the bits of a sum of terms that are not negative.
    """
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def block_sums_reference(logits_BV: Float32[Array, "B V"], ceiling_B: Float32[Array, "B"]) -> Float32[Array, "B N"]:
    """See `op.block_sums`."""
    rows, vocabulary = logits_BV.shape
    padding = -vocabulary % BLOCK
    padded_BV = jnp.pad(logits_BV, ((0, 0), (0, padding)), constant_values=-jnp.inf)
    # The last step of an exponential is a product; fenced, so that it is rounded before it is added.
    terms_BV = lax.optimization_barrier(jnp.exp(padded_BV - ceiling_B[:, None]))
    return halving_sum(terms_BV.reshape(rows, -1, BLOCK))


def join_sums_reference(sums_BN: Float32[Array, "B N"]) -> Float32[Array, "B"]:
    """See `op.join_sums`."""
    blocks = sums_BN.shape[1]
    padding = (1 << (blocks - 1).bit_length()) - blocks
    return halving_sum(jnp.pad(sums_BN, ((0, 0), (0, padding))))
