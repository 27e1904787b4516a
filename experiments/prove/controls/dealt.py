"""Host side: draws and log-probabilities of a vocabulary dealt over devices against the same on one."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from fnx_jax.families.flash_next import shards
from fnx_jax.lanes import logprobs, sampling
from fnx_jax.lanes.scaled import DrawParams
from fnx_jax.mesh import SAME, make_mesh, on_ranks, place_dealt
from fnx_jax.vocabulary_slices import Slices

ROWS, VOCABULARY, RANKS, TOP = 16, 1000, 4, 5


def dealt_draws() -> str | None:
    """Rows of every way of drawing; half of them have ties in several slices."""
    rng = np.random.default_rng(6)
    logits_BV = rng.standard_normal((ROWS, VOCABULARY)).astype(np.float32) * 2
    logits_BV[::2] = np.round(logits_BV[::2])
    one, several = (_draw(logits_BV, slices_of(ranks)) for ranks in (1, RANKS))
    return _first(f"ranks, draw on {RANKS} devices", several, one)


def dealt_logprobs() -> str | None:
    """The log-probability of one id a row and of the likeliest."""
    logits_BV = np.random.default_rng(7).standard_normal((ROWS, VOCABULARY)).astype(np.float32) * 4
    one, several = (_report(logits_BV, slices_of(ranks)) for ranks in (1, RANKS))
    return _first(f"ranks, log-probability on {RANKS} devices", several, one)


def slices_of(ranks: int) -> Slices:
    """The vocabulary dealt as the family deals its head's."""
    config: Any = SimpleNamespace(vocabulary=VOCABULARY)
    share: Any = SimpleNamespace(ranks=ranks)
    return shards.vocabulary_slices(config, share)


def _draw(logits_BV: np.ndarray, slices: Slices) -> np.ndarray:
    rows = np.arange(ROWS, dtype=np.int32)
    params = DrawParams(
        seed_B2=np.stack([rows, rows], axis=1).astype(np.uint32),
        choice_B=rows * 0,
        position_B=rows,
        temperature_B=np.tile(np.array([0, 1, 2, 1.5], np.float32), ROWS // 4),
        top_k_B=np.repeat(np.array([0, 0, 40, 0], np.int32), ROWS // 4),
        top_p_B=np.repeat(np.array([0.9, 0.5, 1, 1], np.float32), ROWS // 4),
        min_p_B=np.zeros(ROWS, np.float32),
    )
    valid_V = np.ones(VOCABULARY, bool)
    mesh = make_mesh(slices.ranks)
    draw = on_ranks(partial(sampling.draw, slices=slices), mesh, lambda *layouts: SAME)
    token_B, _ = draw(_dealt(logits_BV, slices, -np.inf), _dealt(valid_V, slices, False), params)
    return np.asarray(token_B)


def _report(logits_BV: np.ndarray, slices: Slices) -> np.ndarray:
    mesh = make_mesh(slices.ranks)
    report = on_ranks(
        lambda logits, target: logprobs.row_logprobs(logits, target, TOP, slices), mesh, lambda *layouts: SAME
    )
    logprob_B, _, top_BK = report(_dealt(logits_BV, slices, -np.inf), np.arange(ROWS, dtype=np.int32) * 60)
    return np.concatenate([np.asarray(logprob_B)[:, None], np.asarray(top_BK)], axis=1)


def _dealt(values: np.ndarray, slices: Slices, filling: float) -> Any:
    missing = slices.ranks * slices.width - values.shape[-1]
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)], constant_values=filling)
    return place_dealt(np.split(padded, slices.ranks, axis=-1), make_mesh(slices.ranks))


def _first(what: str, found: np.ndarray, wanted: np.ndarray) -> str | None:
    unequal = np.argwhere(found != wanted)
    if not len(unequal):
        return None
    at = tuple(map(int, unequal[0]))
    rows = len(np.unique(unequal[:, 0]))
    return f"{what}: {rows} of {len(found)} rows differ, first row {at[0]}: {found[at]!s}, not {wanted[at]!s}"
