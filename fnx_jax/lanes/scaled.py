"""Traced: from raw logits to rows ready to be filtered and drawn: bias, penalties, mask, temperature, min_p's bound.

Every step keeps to one entry, but for the row's maximum, so a rank works on its slice. Read next: kept.py.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32

from fnx_jax.vocabulary_slices import Slices, whole
from pallas_kernels.elementary import log

GREEDY_BELOW = 1e-5


@flax.struct.dataclass
class DrawParams:
    """How each row is drawn.

    seed_B2: (low, high) words of the seed. choice_B: index of the reply among its request's replies.
    position_B: absolute position of the token drawn.
    temperature_B: below 1e-5 the row takes the argmax.
    top_k_B: entries kept; 0 or less keeps all. top_p_B: nucleus mass in (0, 1]; 1 keeps all.
    min_p_B: floor relative to the likeliest entry's probability, in [0, 1]; 0 keeps all.
    """

    seed_B2: Any  # [B, 2] uint32
    choice_B: Any  # [B] int32
    position_B: Any  # [B] int32
    temperature_B: Any  # [B] float32
    top_k_B: Any  # [B] int32
    top_p_B: Any  # [B] float32
    min_p_B: Any  # [B] float32


@flax.struct.dataclass
class Adjustments:
    """What changes a row's logits before anything else.

    bias_BV: added; -inf forbids an id. repetition_B: divides positive and multiplies negative logits of seen_BV ids.
    presence_B, frequency_B: subtracted once, or times the count, for ids that counts_BV holds.
    """

    bias_BV: Any  # [B, V] float32
    counts_BV: Any  # [B, V] int32
    seen_BV: Any  # [B, V] bool
    presence_B: Any  # [B] float32
    frequency_B: Any  # [B] float32
    repetition_B: Any  # [B] float32


OVER_VOCABULARY = ("bias_BV", "counts_BV", "seen_BV")
"""The fields of Adjustments that a rank holds a slice of."""


@flax.struct.dataclass
class Scaled:
    """A rank's rows ready to be filtered and drawn.

    z_BV: adjusted and masked logits over the temperature. ceiling_B: their maxima over all ranks. floor_B: the min_p
    bound on them. slices: how the vocabulary is dealt, static.
    """

    z_BV: jax.Array  # [B, v] float32
    ceiling_B: jax.Array  # [B] float32
    floor_B: jax.Array  # [B] float32
    slices: Slices = flax.struct.field(pytree_node=False)


def finite_rows(logits_BV: Float32[Array, "B v"], slices: Slices | None = None) -> Bool[Array, "B"]:
    """Says which rows hold neither a NaN nor an infinity on any rank. `slices`: as in sampling.draw."""
    slices = slices or whole(logits_BV.shape[1])
    return slices.everywhere((jnp.isfinite(logits_BV) | slices.padding()).all(axis=1))


def adjust(logits_BV: Float32[Array, "B v"], adjustments: Adjustments) -> Float32[Array, "B v"]:
    """Applies bias, then repetition, then frequency and presence penalties.

    Each product is rounded before the next step, whatever the compiler could contract it with.
    """
    z_BV = logits_BV + adjustments.bias_BV
    factor_B = adjustments.repetition_B
    repeated_BV = jnp.where(z_BV > 0, _divided(z_BV, factor_B), z_BV * factor_B[:, None])
    z_BV = lax.optimization_barrier(jnp.where(adjustments.seen_BV, repeated_BV, z_BV))
    counts_BV = adjustments.counts_BV
    charge_BV = lax.optimization_barrier(adjustments.frequency_B[:, None] * counts_BV.astype(jnp.float32))
    return z_BV - charge_BV - jnp.where(counts_BV > 0, adjustments.presence_B[:, None], jnp.float32(0))


def scale(
    adjusted_BV: Float32[Array, "B v"], valid_V: Bool[Array, "v"], params: DrawParams, slices: Slices | None = None
) -> Scaled:
    """Masks ids without a token and divides by the temperature; greedy rows are divided by 1."""
    slices = slices or whole(adjusted_BV.shape[1])
    temperature_B = jnp.where(params.temperature_B < GREEDY_BELOW, jnp.float32(1), params.temperature_B)
    masked_BV = jnp.where(valid_V[None] & ~slices.padding(), adjusted_BV, -jnp.inf)
    z_BV = lax.optimization_barrier(_divided(masked_BV, temperature_B))  # computed once for all that read it
    ceiling_B = slices.largest(z_BV)
    bound_B = log(jnp.maximum(params.min_p_B, jnp.finfo(jnp.float32).tiny))
    floor_B = jnp.where(params.min_p_B > 0, ceiling_B + bound_B, -jnp.inf)
    return Scaled(z_BV=z_BV, ceiling_B=ceiling_B, floor_B=floor_B, slices=slices)


def _divided(x_BV: jax.Array, divisor_B: jax.Array) -> jax.Array:
    # Unfenced, the compiler turns division by a broadcast into a product with the reciprocal, which rounds twice.
    return x_BV / lax.optimization_barrier(jnp.broadcast_to(divisor_B[:, None], x_BV.shape))
