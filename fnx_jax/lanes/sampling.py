"""Traced: the draw, a pure function of a row's logits and of (seed, choice, position, token id).

The order for one row: bias, repetition penalty, presence and frequency penalties, mask, temperature, top_k, top_p,
min_p, Gumbel-max. Every parameter is an array with one entry a row, so one program serves rows of any kinds, and no
row's token depends on another's. Where ranks hold slices of the vocabulary, each runs this on its own and all draw the
same token. Reductions over the vocabulary are maxima, minima and sums of integers, which no order and no partition
changes; ties go to the lower id everywhere. Read next: scaled.py, kept.py, logprobs.py.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

from fnx_jax.lanes.kept import kept_candidates, kept_everywhere
from fnx_jax.lanes.scaled import (
    GREEDY_BELOW,
    OVER_VOCABULARY,
    Adjustments,
    DrawParams,
    Scaled,
    adjust,
    finite_rows,
    scale,
)
from fnx_jax.vocabulary_slices import Slices, first_largest, whole
from pallas_kernels.fixed_point import MOST_MASSES
from pallas_kernels.keyed_noise import gumbel_noise

CANDIDATES = 1024


def draw(
    logits_BV: Float32[Array, "B v"],
    valid_V: Bool[Array, "v"],
    params: DrawParams,
    *,
    candidates: int = CANDIDATES,
    slices: Slices | None = None,
) -> tuple[Int32[Array, "B"], Bool[Array, "B"]]:
    """Draws one token a row: argmax of z + g over the kept ids, z = logits / temperature, g keyed Gumbel noise.

    top_k keeps the first k in the order (z descending, id ascending); top_p keeps the smallest prefix of those whose
    mass reaches p of theirs; min_p keeps z >= max z + log(min_p).

    Args:
      logits_BV: float32, raw. valid_V: False where an id has no token; such ids are never drawn.
      candidates: entries sorted, static; a row that keeps more is filtered without sorting. Changes speed alone.
      slices: how the vocabulary is dealt, static; arrays then hold this rank's columns. None: all of it is here.
    Returns: token_B, always in [0, V); finite_B, False where the token means nothing: the raw logits hold a NaN or
      an infinity, or no id with a finite score is allowed.
    Raises: ValueError where shapes or dtypes do not fit together.
    """
    slices = _checked(logits_BV, valid_V, params, candidates, slices)
    return _draw(logits_BV, finite_rows(logits_BV, slices), valid_V, params, candidates, slices)


def draw_adjusted(
    logits_BV: Float32[Array, "B v"],
    valid_V: Bool[Array, "v"],
    params: DrawParams,
    adjustments: Adjustments,
    *,
    candidates: int = CANDIDATES,
    slices: Slices | None = None,
) -> tuple[Int32[Array, "B"], Bool[Array, "B"]]:
    """`draw` on adjusted logits. Neutral adjustments (0, and 1 for repetition) give the tokens of `draw`."""
    slices = _checked(logits_BV, valid_V, params, candidates, slices)
    for name in OVER_VOCABULARY:
        if getattr(adjustments, name).shape != logits_BV.shape:
            raise ValueError(f"draw_adjusted: {name} is {getattr(adjustments, name).shape}, not {logits_BV.shape}")
    adjusted_BV = adjust(logits_BV, adjustments)
    return _draw(adjusted_BV, finite_rows(logits_BV, slices), valid_V, params, candidates, slices)


def _draw(
    adjusted_BV: jax.Array, finite_B: jax.Array, valid_V: jax.Array, params: DrawParams, count: int, slices: Slices
) -> tuple[jax.Array, jax.Array]:
    """Every row is drawn in the cheapest way that is exact for it. A branch spares work that no row asks for.

    Ranks exchange values inside branches, so what opens one is known to all of them alike.
    """
    scaled = scale(adjusted_BV, valid_V, params, slices)
    finite_B = finite_B & jnp.isfinite(scaled.ceiling_B)
    sampled_B = finite_B & (params.temperature_B >= GREEDY_BELOW)
    ordered_B = sampled_B & ((params.top_k_B > 0) | (params.top_p_B < 1))
    token_B, nowhere_B = slices.first_largest(scaled.z_BV), jnp.zeros_like(ordered_B)
    listed_B, complete_B = lax.cond(
        ordered_B.any(), lambda: _draw_listed(scaled, params, count), lambda: (token_B, nowhere_B)
    )
    token_B = jnp.where(ordered_B & complete_B, listed_B, token_B)
    rest_B, widened_B = sampled_B & ~(ordered_B & complete_B), ordered_B & ~complete_B
    unlisted_B = lax.cond(rest_B.any(), lambda: _draw_unlisted(scaled, params, widened_B), lambda: token_B)
    return jnp.where(rest_B, unlisted_B, token_B), finite_B


def _draw_listed(scaled: Scaled, params: DrawParams, count: int) -> tuple[jax.Array, jax.Array]:
    """Gumbel-max over the kept candidates, and which rows have all they keep among the `count` that are listed."""
    z_BK, ids_BK, kept_BK, complete_B = kept_candidates(scaled, params, count)
    noise_BK = gumbel_noise(params.seed_B2, params.choice_B, params.position_B, ids_BK)
    return first_largest(jnp.where(kept_BK, z_BK + noise_BK, -jnp.inf), ids_BK), complete_B


def _draw_unlisted(scaled: Scaled, params: DrawParams, widened_B: jax.Array) -> jax.Array:
    """Gumbel-max over the vocabulary. min_p is a bound on z alone; rows with other filters are seen to one by one."""
    bounded_BV = scaled.z_BV >= scaled.floor_B[:, None]

    def kept(row: tuple[Scaled, DrawParams, jax.Array, jax.Array]) -> jax.Array:
        row_scaled, row_params, bounded_V, widened = row
        one_scaled, one_params = jax.tree.map(lambda leaf: leaf[None], (row_scaled, row_params))
        return lax.cond(widened, lambda: kept_everywhere(one_scaled, one_params)[0], lambda: bounded_V)

    rows = scaled, params, bounded_BV, widened_B
    kept_BV = lax.cond(widened_B.any(), lambda: lax.map(kept, rows), lambda: bounded_BV)
    noise_BV = gumbel_noise(params.seed_B2, params.choice_B, params.position_B, scaled.slices.ids())
    return scaled.slices.first_largest(jnp.where(kept_BV, scaled.z_BV + noise_BV, -jnp.inf))


def _checked(
    logits_BV: jax.Array, valid_V: jax.Array, params: DrawParams, candidates: int, slices: Slices | None
) -> Slices:
    if logits_BV.ndim != 2 or logits_BV.dtype != jnp.float32:
        raise ValueError(f"draw: logits are {logits_BV.dtype} {logits_BV.shape}, not float32 [B, V]")
    rows, columns = logits_BV.shape
    slices = slices or whole(columns)
    if columns != slices.width:
        raise ValueError(f"draw: logits of {columns} columns, but a slice holds {slices.width}")
    if slices.vocabulary > MOST_MASSES:
        raise ValueError(f"draw: {slices.vocabulary} ids, more than the {MOST_MASSES} whose masses add up")
    if valid_V.shape != (columns,) or valid_V.dtype != jnp.bool_:
        raise ValueError(f"draw: valid is {valid_V.dtype} {valid_V.shape}, not bool {(columns,)}")
    for name in ("choice_B", "position_B", "temperature_B", "top_k_B", "top_p_B", "min_p_B"):
        if getattr(params, name).shape != (rows,):
            raise ValueError(f"draw: {name} has shape {getattr(params, name).shape}, not {(rows,)}")
    if candidates < 1:
        raise ValueError(f"draw: {candidates} candidates, not 1 or more")
    return slices
