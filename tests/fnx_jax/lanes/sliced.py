"""Draws and reports on a vocabulary dealt over ranks, beside the same on one device, and rows that tell them apart."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from fnx_jax.lanes.kept import kept_candidates, kept_everywhere
from fnx_jax.lanes.logprobs import row_logprobs
from fnx_jax.lanes.programs import deal_adjustments, deal_columns
from fnx_jax.lanes.sampling import Adjustments, draw_adjusted, scale
from fnx_jax.mesh import SAME, make_mesh, on_ranks
from fnx_jax.vocabulary_slices import Slices
from tests.fnx_jax.lanes.sampling_oracle import Row, params_of

CANDIDATES = 32
"""Few, so that filters are wider than the list in vocabularies of a few blocks."""
ROWS = [
    Row(),
    Row(temperature=0.0),
    Row(temperature=0.0, top_k=3),
    Row(min_p=0.1),
    Row(min_p=1.0, temperature=2.0),
    Row(top_k=1),
    Row(top_k=20, top_p=0.95),
    Row(top_k=CANDIDATES),
    Row(top_k=CANDIDATES + 1, top_p=0.9),
    Row(top_k=150, temperature=3.0),
    Row(top_k=100000),
    Row(top_p=0.3),
    Row(top_p=0.9, temperature=1.5),
    Row(top_p=0.999, temperature=9.0, min_p=0.01),
    Row(top_p=1 - 2**-24, temperature=30.0),
    Row(top_p=1e-9),
]
KINDS = ("normal", "ties", "equal", "peaked", "masked", "empty", "spoiled", "wild")
Arguments = tuple[Any, Any, Any, Any, Any]
"""logits, valid ids, draw parameters, adjustments, target ids."""


@cache
def case(kind: str, vocabulary: int, seed: int) -> Arguments:
    """Arguments of sixteen rows of a kind, NumPy; adjustments are neutral for even seeds."""
    rng = np.random.default_rng([KINDS.index(kind), vocabulary, seed])
    shape = (len(ROWS), vocabulary)
    logits, valid = 3 * rng.standard_normal(shape), rng.random(vocabulary) < 0.9
    row_b = np.arange(len(ROWS))
    match kind:
        case "ties":
            logits = rng.integers(-2, 3, shape) / 4 * rng.choice([-1.0, 1.0], shape)  # zeros of both signs
            logits = np.select([(share := rng.random(shape)) < 0.015, share < 0.05], [2.0, 1.5], logits)
        case "equal":
            logits, valid = np.full(shape, rng.normal()), np.ones(vocabulary, bool)
        case "peaked":
            logits[row_b, rng.integers(0, vocabulary, len(ROWS))] += 30
        case "masked":
            valid = np.arange(vocabulary) >= vocabulary - 9
        case "empty":
            valid = np.zeros(vocabulary, bool)
        case "spoiled":
            column_b = rng.integers(0, vocabulary, len(ROWS))
            logits[row_b, column_b] = rng.choice([np.nan, np.inf, -np.inf, 1.0], len(ROWS))
        case "wild":
            logits = 10.0 ** rng.uniform(-38, 38, shape) * rng.choice([-1, 1], shape)
    rows = [replace(row, seed=seed, position=100 * seed + b) for b, row in enumerate(ROWS)]
    target = rng.integers(0, vocabulary, len(ROWS)).astype(np.int32)
    params = jax.tree.map(np.asarray, params_of(rows))
    return logits.astype(np.float32), valid, params, _adjustments(rng, shape, seed % 2), target


def _adjustments(rng: np.random.Generator, shape: tuple[int, int], strength: int) -> Adjustments:
    seen = rng.random(shape) < 0.3 * strength
    bias = np.where(rng.random(shape) < 0.1 * strength, rng.choice([-np.inf, 2.0, -1.0], shape), 0)
    return Adjustments(
        bias_BV=bias.astype(np.float32),
        counts_BV=(seen * rng.integers(0, 4, shape)).astype(np.int32),
        seen_BV=seen,
        presence_B=rng.uniform(-2, 2, shape[0]).astype(np.float32),
        frequency_B=rng.uniform(-1, 1, shape[0]).astype(np.float32),
        repetition_B=rng.uniform(0.7, 1.5, shape[0]).astype(np.float32),
    )


def slices_of(vocabulary: int, ranks: int) -> Slices:
    """Whole blocks of 128, dealt as a head's are."""
    blocks = -(-vocabulary // 128)
    return Slices(vocabulary, -(-blocks // ranks) * 128, ranks)


def report(arguments: Arguments, slices: Slices | None = None, candidates: int = CANDIDATES) -> dict[str, Any]:
    """All that is asked of rows of logits: tokens and finite flags, log-probabilities and the likeliest ids."""
    *drawn, target = arguments
    tokens, finite = draw_adjusted(*drawn, candidates=candidates, slices=slices)
    logprob, ids, logprobs = row_logprobs(arguments[0], target, 20, slices=slices)
    return {"tokens": tokens, "finite": finite, "logprob": logprob, "ids": ids, "logprobs": logprobs}


defined = jax.jit(report)
"""The definition: everything on one device, no padding."""


def kept(arguments: Arguments, slices: Slices | None = None) -> jax.Array:
    """Which of a rank's entries each row's filters keep, found without sorting."""
    logits, valid, params, *_ = arguments
    return kept_everywhere(scale(logits, valid, params, slices), params)


@jax.jit
def kept_in_order(arguments: Arguments) -> tuple[jax.Array, jax.Array]:
    """The same from the whole order: ids, and which of them are kept."""
    logits, valid, params, *_ = arguments
    return kept_candidates(scale(logits, valid, params), params, logits.shape[1])[1:3]


def on_slices(function: Any, vocabulary: int, ranks: int, results: Any = SAME) -> Any:
    """Compiles function(arguments, slices) for arguments as `dealt` places them."""
    sliced = partial(function, slices=slices_of(vocabulary, ranks))
    return on_ranks(sliced, make_mesh(ranks), lambda arguments: results)


def padded(logits_BV: np.ndarray, slices: Slices) -> np.ndarray:
    """Logits with the padding that a head gives them."""
    missing = slices.ranks * slices.width - slices.vocabulary
    return np.pad(logits_BV, ((0, 0), (0, missing)), constant_values=-np.inf)


def dealt(arguments: Arguments, ranks: int) -> Arguments:
    """Places arguments of the definition on ranks."""
    logits, valid, params, adjustments, target = arguments
    slices, mesh = slices_of(logits.shape[1], ranks), make_mesh(ranks)
    whole = replace(slices, vocabulary=ranks * slices.width)
    return (
        deal_columns(padded(logits, slices), whole, mesh),
        deal_columns(valid, slices, mesh),
        params,
        deal_adjustments(adjustments, slices, mesh),
        target,
    )


def differing(found: dict[str, Any], wanted: dict[str, Any]) -> set[str]:
    """Names of the results that differ in a bit; all NaNs are one."""
    return {name for name in wanted if not np.array_equal(_bits(found[name]), _bits(wanted[name]))}


def _bits(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return np.where(np.isnan(array), np.float32(np.nan), array).view(np.uint32) if array.dtype == np.float32 else array
