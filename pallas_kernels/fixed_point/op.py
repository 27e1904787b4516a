"""Traced side: masses, their sums, and the question whether a prefix is still short of a fraction. See reference.py.

A mass is floor(share * 2**40), share = exp(z - largest z) in [0, 1]. Sums of integers are the same in any order and
any partition, so a nucleus cut from them is too.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, UInt32

from pallas_kernels.fixed_point.reference import SUM_LIMBS, carry, less, multiply, split_unit

FRACTION_BITS = 24
MOST_MASSES = 1 << 18
"""Masses of a row, over all ranks, whose limbs add up in 32 bits."""


def mass_limbs(share_BN: Float32[Array, "B N"]) -> UInt32[Array, "3 B N"]:
    """Returns floor(share * 2**40), share in [0, 1], as three limbs of 14 bits, lowest first.

    Raises: ValueError where a row holds more than 2**18 shares, whose sum could overflow a limb.
    """
    if share_BN.shape[-1] > MOST_MASSES:
        raise ValueError(f"mass_limbs: {share_BN.shape[-1]} shares a row, more than {MOST_MASSES}")
    return split_unit(share_BN)


def mass_sums(limbs_3BN: UInt32[Array, "3 B N"]) -> UInt32[Array, "3 B 1"]:
    """Adds each limb over a row, without carries: sums of parts of at most 2**18 masses together may be added."""
    return limbs_3BN.sum(axis=-1, keepdims=True)


def carried(sums: UInt32[Array, "3 ..."]) -> UInt32[Array, "5 ..."]:
    """Brings sums of limbs into the one form that numbers are compared in: five limbs below 2**14."""
    return carry(sums, SUM_LIMBS)


def mass_before(limbs_3BN: UInt32[Array, "3 B N"]) -> UInt32[Array, "5 B N"]:
    """Returns the sum of the masses in front of each entry of a row, carried."""
    return carried(jnp.cumsum(limbs_3BN, axis=-1) - limbs_3BN)


def fraction_limbs(p: Float32[Array, "..."]) -> UInt32[Array, "2 ..."]:
    """Returns round(p * 2**24), at least 1, for p in [0, 1], as two limbs; half rounds to even."""
    scaled = jnp.round(p * jnp.float32(2.0**FRACTION_BITS)).astype(jnp.uint32)
    return carry(jnp.maximum(scaled, jnp.uint32(1))[None], 2)


def within_fraction(
    before: UInt32[Array, "5 B N"], total: UInt32[Array, "5 B 1"], fraction: UInt32[Array, "2 B 1"]
) -> Bool[Array, "B N"]:
    """Says where before * 2**24 < fraction * total: the entries of the smallest prefix that reaches the fraction.

    All arguments are carried. The first entry of a row is always within, since fractions are at least 1.
    """
    one = carry(jnp.full((1, *fraction.shape[1:]), 1 << FRACTION_BITS, jnp.uint32), 2)
    return less(multiply(before, one), multiply(total, fraction))
