"""What top_k, top_p and min_p keep, at ties and borders, and that wide filters stay exact."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnx_jax.lanes.sampling import DrawParams, kept_candidates, scale
from tests.fnx_jax.lanes.sampling_oracle import (
    KINDS,
    WIDE,
    Row,
    V,
    all_valid,
    at,
    normal_logits,
    oracle_kept,
    oracle_token,
    params_of,
    tokens,
)


@partial(jax.jit, static_argnames="count")
def filtered(logits_BV: jax.Array, params: DrawParams, count: int) -> tuple[jax.Array, ...]:
    """ids, kept, complete of the first `count` candidates."""
    return kept_candidates(scale(logits_BV, all_valid(logits_BV.shape[1]), params), params, count)[1:]


def kept_ids(logits_V: np.ndarray, row: Row) -> list[int]:
    ids_1K, kept_1K, complete_1 = filtered(jnp.asarray(logits_V)[None], params_of([row]), len(logits_V))
    assert complete_1.all()
    return np.asarray(ids_1K)[np.asarray(kept_1K)].tolist()


@pytest.mark.parametrize("row", [row for row in KINDS if row.temperature >= 1e-5], ids=str)
def test_kept_sets_equal_those_of_exact_arithmetic(row):
    for levels in (3, 40):
        logits_V = np.random.default_rng(levels).integers(0, levels, V).astype(np.float32) / 4
        z_V = logits_V / np.float32(row.temperature)
        assert kept_ids(logits_V, row) == oracle_kept(z_V, row)


@pytest.mark.parametrize(
    ("p", "kept"), [(0.5, 4), (0.5 + 2**-24, 5), (0.5 - 2**-24, 4), (0.125, 1), (2**-30, 1), (1 - 2**-24, 8), (1.0, 8)]
)
def test_equal_logits_are_cut_exactly_where_the_mass_reaches_p(p, kept):
    logits_V = np.full(8, 2.5, np.float32)
    assert kept_ids(logits_V, Row(top_p=p)) == list(range(kept))


def test_the_nucleus_is_renormalised_over_what_top_k_left():
    logits_V = np.zeros(V, np.float32)
    assert kept_ids(logits_V, Row(top_k=10, top_p=0.5)) == list(range(5))
    assert kept_ids(logits_V, Row(top_p=0.5)) == list(range(V // 2))


def test_ties_at_every_cut_go_to_the_lower_id_and_the_swapped_order_is_told_apart():
    rows = [replace(row, top_k=12, top_p=0.7, position=p) for p, row in enumerate([Row()] * 16)]
    logits_BV = np.random.default_rng(1).integers(0, 2, (16, V)).astype(np.float32)
    pairs = list(zip(logits_BV, rows, strict=True))
    assert tokens(logits_BV, rows) == [oracle_token(*pair) for pair in pairs]
    assert tokens(logits_BV, rows) != [oracle_token(*pair, tie=-1) for pair in pairs]


def test_zeros_of_both_signs_tie():
    logits_V = np.zeros(V, np.float32)
    logits_V[::2] = -0.0
    assert kept_ids(logits_V, Row(top_k=6)) == list(range(6))
    assert tokens(logits_V[None], [Row(temperature=0.0)]) == [0]


def test_a_full_nucleus_keeps_ids_whose_mass_rounds_to_zero():
    logits_V = np.array([0, -60, -20], np.float32)
    assert kept_ids(logits_V, Row(top_k=3)) == [0, 2, 1]
    assert kept_ids(logits_V, Row(top_k=3, top_p=1 - 2**-24)) == [0]


def test_an_unfiltered_draw_equals_the_candidate_path_that_keeps_all():
    logits_BV = normal_logits(4, WIDE)
    for position in range(20, 40, 4):
        free = at([Row(), Row(temperature=3.0), Row(temperature=0.3), Row(min_p=1e-4)], position)
        ordered = [replace(row, top_k=WIDE) for row in free]
        assert tokens(logits_BV, ordered, candidates=64) == tokens(logits_BV, free, candidates=64)


def test_filters_wider_than_the_candidates_stay_exact():
    wide = [Row(top_p=0.9), Row(top_k=2000), Row(top_k=3000, top_p=0.9, min_p=0.5)]
    rows, logits_BV = at([*wide, Row(top_k=20)], 60), normal_logits(4, WIDE)
    logits_BV[:3] = 1.0
    assert filtered(jnp.asarray(logits_BV), params_of(rows), 1024)[2].tolist() == [False] * 3 + [True]
    expected = [oracle_token(*pair) for pair in zip(logits_BV, rows, strict=True)]
    assert tokens(logits_BV, rows) == expected
    assert tokens(logits_BV, rows, candidates=64) == expected
    assert max(expected) > 1024


def test_a_cut_at_the_last_candidate_is_widened_only_where_it_must_be():
    logits_BV = np.zeros((4, WIDE), np.float32)
    rows = at([Row(top_k=63), Row(top_k=64), Row(top_k=65), Row(top_p=64 / WIDE)], 3)
    assert filtered(jnp.asarray(logits_BV), params_of(rows), 64)[2].tolist() == [True, False, False, False]
    assert tokens(logits_BV, rows, candidates=64) == [oracle_token(*pair) for pair in zip(logits_BV, rows, strict=True)]
