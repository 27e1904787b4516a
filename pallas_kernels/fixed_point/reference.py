"""Traced side: integers of many bits as uint32 limbs of 14 bits, lowest first on the leading axis. Edge: op.py.

Limbs of 14 bits leave 18 bits of room in 32: 2**18 of them add up before any carry, and 15 products of two fit too.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, UInt32

LIMB_BITS = 14
LIMB_MASK = (1 << LIMB_BITS) - 1
MASS_BITS = 40
MASS_LIMBS = 3
SUM_LIMBS = 5
"""2**18 masses of at most 2**40 need 59 bits."""


def split_unit(share: Float32[Array, "..."]) -> UInt32[Array, "3 ..."]:
    """floor(share * 2**40) for share in [0, 1]. Every step is exact: scalings by powers of two and remainders."""
    limbs = []
    rest = share * jnp.float32(2.0 ** (MASS_BITS - 2 * LIMB_BITS))
    for _ in range(MASS_LIMBS):
        whole = jnp.floor(rest)
        limbs.append(whole.astype(jnp.uint32))
        rest = (rest - whole) * jnp.float32(2.0**LIMB_BITS)
    return jnp.stack(limbs[::-1])


def carry(limbs: UInt32[Array, "M ..."], count: int) -> UInt32[Array, "N ..."]:
    """Moves what exceeds 14 bits upward, into `count` limbs."""
    carried, above = [], jnp.zeros_like(limbs[0])
    for index in range(count):
        limb = above + limbs[index] if index < limbs.shape[0] else above
        carried.append(limb & jnp.uint32(LIMB_MASK))
        above = limb >> jnp.uint32(LIMB_BITS)
    return jnp.stack(carried)


def multiply(left: UInt32[Array, "M ..."], right: UInt32[Array, "N ..."]) -> UInt32[Array, "L ..."]:
    """The product of two carried numbers, of M and N <= 15 limbs, in L = M + N limbs."""
    columns = [[] for _ in range(left.shape[0] + right.shape[0] - 1)]
    for i in range(left.shape[0]):
        for j in range(right.shape[0]):
            columns[i + j].append(left[i] * right[j])
    return carry(jnp.stack([sum(terms[1:], terms[0]) for terms in columns]), len(columns) + 1)


def less(left: UInt32[Array, "M ..."], right: UInt32[Array, "M ..."]) -> Bool[Array, "..."]:
    """left < right for two carried numbers of as many limbs: the highest limb that differs decides."""
    smaller = left[0] < right[0]
    for index in range(1, left.shape[0]):
        smaller = jnp.where(left[index] == right[index], smaller, left[index] < right[index])
    return smaller
