"""Traced side: the definition of the keyed noise, from the hash to the Gumbel variable. Public edge: op.py.

Everything up to the uniform value is uint32 arithmetic and the same on every backend; for the two logarithms see
elementary.py.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32, Int, UInt32

from pallas_kernels.elementary import log, log1p

Pair = tuple[jax.Array, jax.Array]

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry2x32(key: Pair, counter: Pair) -> Pair:
    """Threefry-2x32 with 20 rounds: two uint32 words of key and counter to two hashed words, elementwise.

    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
    """
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY))
    x0, x1 = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << jnp.uint32(rotation)) | (x1 >> jnp.uint32(32 - rotation))
            x1 = x1 ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x0, x1


def noise_words(
    seed_B2: UInt32[Array, "B 2"], choice_B: Int[Array, "B"], position_B: Int[Array, "B"], ids_BK: Int[Array, "#B K"]
) -> tuple[UInt32[Array, "B K"], UInt32[Array, "B K"]]:
    """Returns the 64 random bits of each (row, id) as (high, low) words.

    row key = threefry(key=(seed low, seed high), counter=(position, choice))
    words = threefry(key=row key, counter=(id, 0))
    """
    row_key = threefry2x32((seed_B2[:, 0], seed_B2[:, 1]), (position_B.astype(jnp.uint32), choice_B.astype(jnp.uint32)))
    ids_BK = ids_BK.astype(jnp.uint32)
    return threefry2x32((row_key[0][:, None], row_key[1][:, None]), (ids_BK, jnp.zeros_like(ids_BK)))


def uniform(high: UInt32[Array, "..."], low: UInt32[Array, "..."]) -> Float32[Array, "..."]:
    """Maps 64 bits to a float32 in (0, 1) whose exponent reaches down to 2**-65.

    v = (w cut to its 24 leading significant bits) * 2**-64 with w = high * 2**32 + low, and 2**-65 for w = 0. Cutting
    keeps v below 1; keeping the leading bits, wherever they start, gives small v all 24 bits of precision.
    """
    short = high == 0  # the leading bit, if any, is in the low word
    top, rest = jnp.where(short, low, high), jnp.where(short, jnp.uint32(0), low)
    zeros = lax.clz(top)
    shift = jnp.minimum(zeros, jnp.uint32(31))  # a shift by 32 is undefined on some backends
    significant = (top << shift) | ((rest >> jnp.uint32(1)) >> (jnp.uint32(31) - shift))
    exponent = jnp.uint32(126) - zeros - jnp.where(short, jnp.uint32(32), jnp.uint32(0))
    bits = (exponent << jnp.uint32(23)) | ((significant >> jnp.uint32(8)) & jnp.uint32(0x7FFFFF))
    return lax.bitcast_convert_type(bits, jnp.float32)


def gumbel(v: Float32[Array, "..."]) -> Float32[Array, "..."]:
    """g = -log(-log1p(-v)): the Gumbel variable of the exponential variable -log(1 - v).

    Draws are won by large g, so large g must come from small v, where floats are dense: a token of probability q
    wins by g near log(1/q), which is v near q. Reading g = -log(-log v) instead would take the winners from v near
    1, where float32 has no value between 1 - 2**-24 and 1, and no token rarer than that could win.
    """
    return -log(-log1p(-v))


def gumbel_noise_reference(
    seed_B2: UInt32[Array, "B 2"], choice_B: Int[Array, "B"], position_B: Int[Array, "B"], ids_BK: Int[Array, "#B K"]
) -> Float32[Array, "B K"]:
    """See `op.gumbel_noise`."""
    return gumbel(uniform(*noise_words(seed_B2, choice_B, position_B, ids_BK)))
