"""Traced: the draw, a pure function of a row's logits and of (seed, choice, position, token id).

The order for one row: bias, repetition penalty, presence and frequency penalties, mask, temperature, top_k, top_p,
min_p, Gumbel-max. Every parameter is an array with one entry a row, so one program serves rows of any kinds, and no
row's token depends on another's. Reductions over the vocabulary are maxima, minima and sums of integers, which no
order and no partition changes; ties go to the lower id everywhere. Read next: logprobs.py.
"""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

from pallas_kernels.candidates import top_candidates
from pallas_kernels.fixed_point import carried, fraction_limbs, mass_before, mass_limbs, mass_sums, within_fraction
from pallas_kernels.keyed_noise import gumbel_noise

GREEDY_BELOW = 1e-5
CANDIDATES = 1024


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


@flax.struct.dataclass
class Scaled:
    """Rows ready to be filtered and drawn.

    z_BV: adjusted and masked logits over the temperature. ceiling_B: their maxima. floor_B: the min_p bound on them.
    """

    z_BV: jax.Array  # [B, V] float32
    ceiling_B: jax.Array  # [B] float32
    floor_B: jax.Array  # [B] float32


def draw(
    logits_BV: Float32[Array, "B V"],
    valid_V: Bool[Array, "V"],
    params: DrawParams,
    *,
    candidates: int = CANDIDATES,
) -> tuple[Int32[Array, "B"], Bool[Array, "B"]]:
    """Draws one token a row: argmax of z + g over the kept ids, z = logits / temperature, g keyed Gumbel noise.

    top_k keeps the first k in the order (z descending, id ascending); top_p keeps the smallest prefix of those whose
    mass reaches p of theirs; min_p keeps z >= max z + log(min_p).

    Args:
      logits_BV: float32, raw. valid_V: False where an id has no token; such ids are never drawn.
      candidates: entries sorted at first, static; a row that keeps more is sorted whole. Changes speed alone.
    Returns: token_B, always in [0, V); finite_B, False where the token means nothing: the raw logits hold a NaN or
      an infinity, or no id with a finite score is allowed.
    Raises: ValueError where shapes or dtypes do not fit together.
    """
    _check(logits_BV, valid_V, params, candidates)
    return _draw(logits_BV, finite_rows(logits_BV), valid_V, params, candidates)


def draw_adjusted(
    logits_BV: Float32[Array, "B V"],
    valid_V: Bool[Array, "V"],
    params: DrawParams,
    adjustments: Adjustments,
    *,
    candidates: int = CANDIDATES,
) -> tuple[Int32[Array, "B"], Bool[Array, "B"]]:
    """`draw` on adjusted logits. Neutral adjustments (0, and 1 for repetition) give the tokens of `draw`."""
    _check(logits_BV, valid_V, params, candidates)
    for name in ("bias_BV", "counts_BV", "seen_BV"):
        if getattr(adjustments, name).shape != logits_BV.shape:
            raise ValueError(f"draw_adjusted: {name} is {getattr(adjustments, name).shape}, not {logits_BV.shape}")
    adjusted_BV = adjust(logits_BV, adjustments)
    return _draw(adjusted_BV, finite_rows(logits_BV), valid_V, params, candidates)


def finite_rows(logits_BV: Float32[Array, "B V"]) -> Bool[Array, "B"]:
    """Says which rows hold neither a NaN nor an infinity."""
    return jnp.isfinite(logits_BV).all(axis=1)


def adjust(logits_BV: Float32[Array, "B V"], adjustments: Adjustments) -> Float32[Array, "B V"]:
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


def scale(adjusted_BV: Float32[Array, "B V"], valid_V: Bool[Array, "V"], params: DrawParams) -> Scaled:
    """Masks ids without a token and divides by the temperature; greedy rows are divided by 1."""
    temperature_B = jnp.where(params.temperature_B < GREEDY_BELOW, jnp.float32(1), params.temperature_B)
    masked_BV = jnp.where(valid_V[None], adjusted_BV, -jnp.inf)
    z_BV = lax.optimization_barrier(_divided(masked_BV, temperature_B))  # computed once for all that read it
    ceiling_B = z_BV.max(axis=1)
    bound_B = lax.optimization_barrier(jnp.log(jnp.maximum(params.min_p_B, jnp.finfo(jnp.float32).tiny)))
    floor_B = jnp.where(params.min_p_B > 0, ceiling_B + bound_B, -jnp.inf)
    return Scaled(z_BV=z_BV, ceiling_B=ceiling_B, floor_B=floor_B)


def kept_candidates(
    scaled: Scaled, params: DrawParams, count: int
) -> tuple[Float32[Array, "B K"], Int32[Array, "B K"], Bool[Array, "B K"], Bool[Array, "B"]]:
    """Filters the first K = min(count, V) entries of each row by top_k, top_p and min_p.

    Returns: z and ids in the order (z descending, id ascending); which of them are kept, a prefix; and which rows
      are complete, their kept entries being all among the K.
    """
    z_BK, ids_BK = top_candidates(scaled.z_BV, count)
    within_k_BK = (params.top_k_B <= 0)[:, None] | (jnp.arange(z_BK.shape[1])[None] < params.top_k_B[:, None])
    masses_3BK = jnp.where(within_k_BK[None], _masses(z_BK, scaled.ceiling_B), jnp.uint32(0))
    of_vocabulary_3B1 = mass_sums(_masses(scaled.z_BV, scaled.ceiling_B))
    total_3B1 = jnp.where((params.top_k_B > 0)[None, :, None], mass_sums(masses_3BK), of_vocabulary_3B1)
    within_p_BK = within_fraction(
        mass_before(masses_3BK), carried(total_3B1), fraction_limbs(params.top_p_B)[:, :, None]
    )
    kept_BK = within_k_BK & (within_p_BK | (params.top_p_B >= 1)[:, None])
    kept_BK = kept_BK & (z_BK >= scaled.floor_B[:, None]) & (z_BK > -jnp.inf)
    whole = z_BK.shape[1] == scaled.z_BV.shape[1]
    return z_BK, ids_BK, kept_BK, whole | (~kept_BK[:, -1] & (params.top_k_B <= z_BK.shape[1]))


def _draw(
    adjusted_BV: jax.Array, finite_B: jax.Array, valid_V: jax.Array, params: DrawParams, count: int
) -> tuple[jax.Array, jax.Array]:
    scaled = scale(adjusted_BV, valid_V, params)
    finite_B = finite_B & jnp.isfinite(scaled.ceiling_B)
    sampled_B = finite_B & (params.temperature_B >= GREEDY_BELOW)
    ordered_B = sampled_B & ((params.top_k_B > 0) | (params.top_p_B < 1))
    token_B = _first_largest(scaled.z_BV, _all_ids(scaled))
    token_B = _where_drawn(sampled_B & ~ordered_B, lambda: _draw_unordered(scaled, params), token_B)
    token_B = _where_drawn(ordered_B, lambda: _draw_ordered(scaled, params, ordered_B, count), token_B)
    return token_B, finite_B


def _where_drawn(chosen_B: jax.Array, draw_rows: Callable[[], jax.Array], token_B: jax.Array) -> jax.Array:
    """Replaces the chosen rows' tokens. The branch spares work that no row asks for; it changes no value."""
    return jnp.where(chosen_B, lax.cond(chosen_B.any(), draw_rows, lambda: token_B), token_B)


def _draw_unordered(scaled: Scaled, params: DrawParams) -> jax.Array:
    """Gumbel-max over the whole vocabulary. min_p is a bound on z alone, so it needs no order."""
    ids_1V = _all_ids(scaled)
    noise_BV = gumbel_noise(params.seed_B2, params.choice_B, params.position_B, ids_1V)
    score_BV = jnp.where(scaled.z_BV >= scaled.floor_B[:, None], scaled.z_BV + noise_BV, -jnp.inf)
    return _first_largest(score_BV, ids_1V)


def _draw_ordered(scaled: Scaled, params: DrawParams, ordered_B: jax.Array, count: int) -> jax.Array:
    """Gumbel-max over the kept candidates; rows that keep more than `count` are sorted whole, one after another."""
    token_B, complete_B = _draw_candidates(scaled, params, count)
    widen_B = ordered_B & ~complete_B

    def widened(row: tuple[Scaled, DrawParams, jax.Array, jax.Array]) -> jax.Array:
        row_scaled, row_params, token, widen = row
        one_scaled, one_params = jax.tree.map(lambda leaf: leaf[None], (row_scaled, row_params))
        vocabulary = row_scaled.z_BV.shape[0]
        return lax.cond(widen, lambda: _draw_candidates(one_scaled, one_params, vocabulary)[0][0], lambda: token)

    return lax.cond(widen_B.any(), lambda: lax.map(widened, (scaled, params, token_B, widen_B)), lambda: token_B)


def _draw_candidates(scaled: Scaled, params: DrawParams, count: int) -> tuple[jax.Array, jax.Array]:
    z_BK, ids_BK, kept_BK, complete_B = kept_candidates(scaled, params, count)
    noise_BK = gumbel_noise(params.seed_B2, params.choice_B, params.position_B, ids_BK)
    return _first_largest(jnp.where(kept_BK, z_BK + noise_BK, -jnp.inf), ids_BK), complete_B


def _divided(x_BV: jax.Array, divisor_B: jax.Array) -> jax.Array:
    # Unfenced, the compiler turns division by a broadcast into a product with the reciprocal, which rounds twice.
    return x_BV / lax.optimization_barrier(jnp.broadcast_to(divisor_B[:, None], x_BV.shape))


def _masses(z_BN: jax.Array, ceiling_B: jax.Array) -> jax.Array:
    return mass_limbs(jnp.exp(z_BN - ceiling_B[:, None]))


def _all_ids(scaled: Scaled) -> jax.Array:
    return jnp.arange(scaled.z_BV.shape[1], dtype=jnp.int32)[None]


def _first_largest(score_BK: jax.Array, ids_BK: jax.Array) -> jax.Array:
    """The lowest id among the largest scores, in whatever order they stand; some id of the row if one is NaN."""
    largest_B1 = score_BK.max(axis=1, keepdims=True)
    lowest_B = jnp.where(score_BK == largest_B1, ids_BK, jnp.iinfo(jnp.int32).max).min(axis=1)
    return jnp.minimum(lowest_B, ids_BK.max(axis=1))


def _check(logits_BV: jax.Array, valid_V: jax.Array, params: DrawParams, candidates: int) -> None:
    if logits_BV.ndim != 2 or logits_BV.dtype != jnp.float32:
        raise ValueError(f"draw: logits are {logits_BV.dtype} {logits_BV.shape}, not float32 [B, V]")
    rows, vocabulary = logits_BV.shape
    if valid_V.shape != (vocabulary,) or valid_V.dtype != jnp.bool_:
        raise ValueError(f"draw: valid is {valid_V.dtype} {valid_V.shape}, not bool {(vocabulary,)}")
    for name in ("choice_B", "position_B", "temperature_B", "top_k_B", "top_p_B", "min_p_B"):
        if getattr(params, name).shape != (rows,):
            raise ValueError(f"draw: {name} has shape {getattr(params, name).shape}, not {(rows,)}")
    if candidates < 1:
        raise ValueError(f"draw: {candidates} candidates, not 1 or more")
