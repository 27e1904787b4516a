"""Traced: which entries of a row top_k, top_p and min_p keep, exactly: from a short list, or from all ranks' slices.

Both give the same set. It is a prefix of the order (z descending, id ascending), and its end is decided by counts and
by masses in integers, whose sums no order and no partition changes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from fnx_jax.lanes.scaled import DrawParams, Scaled
from fnx_jax.vocabulary_slices import Slices
from pallas_kernels.elementary import exp
from pallas_kernels.fixed_point import carried, fraction_limbs, mass_before, mass_limbs, mass_sums, within_fraction

_KEY_BITS = 32


def kept_candidates(
    scaled: Scaled, params: DrawParams, count: int
) -> tuple[Float32[Array, "B K"], Int32[Array, "B K"], Bool[Array, "B K"], Bool[Array, "B"]]:
    """Filters the first K = min(count, V) entries of each row by top_k, top_p and min_p. Every rank gets the list.

    Returns: z and ids in the order (z descending, id ascending); which of them are kept, a prefix; and which rows
      are complete, their kept entries being all among the K.
    """
    z_BK, ids_BK = scaled.slices.top(scaled.z_BV, count)
    within_k_BK = (params.top_k_B <= 0)[:, None] | (jnp.arange(z_BK.shape[1])[None] < params.top_k_B[:, None])
    masses_3BK = jnp.where(within_k_BK[None], _masses(z_BK, scaled.ceiling_B), jnp.uint32(0))
    of_vocabulary_3B1 = scaled.slices.total(mass_sums(_masses(scaled.z_BV, scaled.ceiling_B)))
    total_3B1 = jnp.where((params.top_k_B > 0)[None, :, None], mass_sums(masses_3BK), of_vocabulary_3B1)
    within_p_BK = within_fraction(mass_before(masses_3BK), carried(total_3B1), _fraction(params))
    kept_BK = within_k_BK & (within_p_BK | (params.top_p_B >= 1)[:, None])
    kept_BK = kept_BK & (z_BK >= scaled.floor_B[:, None]) & (z_BK > -jnp.inf)
    whole = z_BK.shape[1] == scaled.slices.vocabulary
    return z_BK, ids_BK, kept_BK, whole | (~kept_BK[:, -1] & (params.top_k_B <= z_BK.shape[1]))


def kept_everywhere(scaled: Scaled, params: DrawParams) -> Bool[Array, "B v"]:
    """Filters all entries by top_k, top_p and min_p, each rank its own, however many are kept."""
    key_Bv, slices = _ordered_bits(scaled.z_BV), scaled.slices
    top_k_B1 = jnp.maximum(params.top_k_B, 0).astype(jnp.uint32)[:, None]
    within_k_Bv = lax.cond(
        (top_k_B1 > 0).any(),
        lambda: _prefix(key_Bv, jnp.ones_like(key_Bv)[None], lambda count_1B1: count_1B1[0] < top_k_B1, slices),
        lambda: jnp.ones_like(key_Bv, bool),
    )
    within_k_Bv = within_k_Bv | (top_k_B1 == 0)
    masses_3Bv = jnp.where(within_k_Bv[None], _masses(scaled.z_BV, scaled.ceiling_B), jnp.uint32(0))
    total_5B1 = carried(slices.total(mass_sums(masses_3Bv)))
    short = lambda sums_3B1: within_fraction(carried(sums_3B1), total_5B1, _fraction(params))  # noqa: E731
    within_p_Bv = _prefix(key_Bv, masses_3Bv, short, slices)
    kept_Bv = within_k_Bv & (within_p_Bv | (params.top_p_B >= 1)[:, None])
    return kept_Bv & (scaled.z_BV >= scaled.floor_B[:, None]) & (scaled.z_BV > -jnp.inf)


def _prefix(
    key_Bv: UInt32[Array, "B v"],
    limbs_MBv: UInt32[Array, "M B v"],
    short: Callable[[UInt32[Array, "M B 1"]], Bool[Array, "B 1"]],
    slices: Slices,
) -> Bool[Array, "B v"]:
    """Marks the smallest prefix of (key descending, id ascending) whose sum is no longer short, or all entries.

    Nothing is sorted: the prefix's last entry is found bit by bit, first its key and then, among equal keys, its id.
    """
    ids_1v = slices.ids()

    def sums(chosen_Bv: jax.Array) -> jax.Array:
        return slices.total(mass_sums(jnp.where(chosen_Bv[None], limbs_MBv, jnp.uint32(0))))

    def key_bit(step: jax.Array, key_B1: jax.Array) -> jax.Array:
        tried_B1 = key_B1 | (jnp.uint32(1 << (_KEY_BITS - 1)) >> step.astype(jnp.uint32))
        return jnp.where(short(sums(key_Bv >= tried_B1)), key_B1, tried_B1)

    key_B1 = lax.fori_loop(0, _KEY_BITS, key_bit, jnp.zeros((key_Bv.shape[0], 1), jnp.uint32))
    above_MB1, tied_Bv = sums(key_Bv > key_B1), key_Bv == key_B1
    id_bits = (slices.ranks * slices.apart() - 1).bit_length()

    def id_bit(step: jax.Array, id_B1: jax.Array) -> jax.Array:
        tried_B1 = id_B1 | (jnp.int32(1 << max(id_bits - 1, 0)) >> step)
        return jnp.where(short(above_MB1 + sums(tied_Bv & (ids_1v < tried_B1))), tried_B1, id_B1)

    id_B1 = lax.fori_loop(0, id_bits, id_bit, jnp.zeros((key_Bv.shape[0], 1), jnp.int32))
    return (key_Bv > key_B1) | (tied_Bv & (ids_1v <= id_B1))


def _ordered_bits(z_BV: Float32[Array, "B v"]) -> UInt32[Array, "B v"]:
    """Unsigned integers in the order of the floats; zeros of both signs are one."""
    bits_BV = lax.bitcast_convert_type(jnp.where(z_BV == 0, jnp.float32(0), z_BV), jnp.uint32)
    return jnp.where(bits_BV >> 31 == 1, ~bits_BV, bits_BV | jnp.uint32(1 << 31))


def _masses(z_BN: jax.Array, ceiling_B: jax.Array) -> jax.Array:
    return mass_limbs(exp(z_BN - ceiling_B[:, None]))


def _fraction(params: DrawParams) -> jax.Array:
    return fraction_limbs(params.top_p_B)[:, :, None]
