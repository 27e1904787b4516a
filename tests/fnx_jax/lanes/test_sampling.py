"""The draw against a float64 NumPy oracle, and what a row's token may depend on."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnx_jax.lanes.sampling import Adjustments, adjust, draw, draw_adjusted, scale
from tests.fnx_jax.lanes.sampling_oracle import (
    KINDS,
    WIDE,
    Row,
    V,
    all_valid,
    at,
    drawn,
    normal_logits,
    oracle_kept,
    oracle_token,
    params_of,
    tokens,
)

drawn_adjusted = jax.jit(draw_adjusted)


@pytest.mark.parametrize("position", [1, 5000, 262000])
def test_draws_equal_the_float64_oracle(position):
    rows, logits_BV = at(KINDS, position), normal_logits(len(KINDS), V, seed=position)
    expected = [oracle_token(logits_V, row) for logits_V, row in zip(logits_BV, rows, strict=True)]
    assert tokens(logits_BV, rows) == expected
    assert len(set(expected)) > len(expected) // 2


def test_greedy_ties_go_to_the_lower_id_and_begin_below_1e_5():
    logits_BV = normal_logits(16, V)
    logits_BV[:, [50, 200]] = 40.0
    assert tokens(logits_BV, [Row(temperature=t) for t in (0.0, -1.0, 9e-6, 0.0)] * 4) == [50] * 16
    warm = [Row(temperature=1e-5, position=p) for p in range(16)]  # an exact tie, so the noise decides
    assert tokens(logits_BV, warm) == [oracle_token(*pair) for pair in zip(logits_BV, warm, strict=True)]
    assert set(tokens(logits_BV, warm)) == {50, 200}


def test_masked_ids_are_never_drawn():
    logits_BV = normal_logits(len(KINDS), V)
    valid_V = np.zeros(V, bool)
    valid_V[100:110] = True
    logits_BV[:, 50] = 90.0  # the likeliest id has no token
    token_B, finite_B = drawn(jnp.asarray(logits_BV), jnp.asarray(valid_V), params_of(KINDS))
    masked_BV = np.where(valid_V, logits_BV, -np.inf)
    assert token_B.tolist() == [oracle_token(*pair) for pair in zip(masked_BV, KINDS, strict=True)]
    assert finite_B.all()
    only = jnp.asarray(np.arange(V) == 77)
    assert drawn(jnp.asarray(logits_BV), only, params_of(KINDS))[0].tolist() == [77] * len(KINDS)


def test_a_row_with_no_allowed_id_is_reported():
    token_B, finite_B = drawn(jnp.asarray(normal_logits(len(KINDS), V)), jnp.zeros(V, bool), params_of(KINDS))
    assert not finite_B.any()
    assert ((token_B >= 0) & (token_B < V)).all()


def adjustments_of(rows: int, seed: int) -> Adjustments:
    rng = np.random.default_rng(seed)
    counts_BV = rng.integers(0, 4, (rows, V)) * (rng.random((rows, V)) < 0.3)
    bias_BV = np.where(rng.random((rows, V)) < 0.1, rng.normal(0, 5, (rows, V)), 0)
    bias_BV[rng.random((rows, V)) < 0.1] = -np.inf
    return Adjustments(
        bias_BV=jnp.asarray(bias_BV, jnp.float32),
        counts_BV=jnp.asarray(counts_BV, jnp.int32),
        seen_BV=jnp.asarray((counts_BV > 0) | (rng.random((rows, V)) < 0.2)),
        presence_B=jnp.asarray(rng.uniform(-2, 2, rows), jnp.float32),
        frequency_B=jnp.asarray(rng.uniform(-1, 1, rows), jnp.float32),
        repetition_B=jnp.asarray(rng.uniform(0.7, 1.5, rows), jnp.float32),
    )


def oracle_adjusted(logits_V: np.ndarray, adjustments: Adjustments, row: int) -> np.ndarray:
    a = jax.tree.map(lambda leaf: np.asarray(leaf[row]), adjustments)
    z_V = logits_V + a.bias_BV
    z_V = np.where(a.seen_BV, np.where(z_V > 0, z_V / a.repetition_B, z_V * a.repetition_B), z_V)
    return z_V - a.frequency_B * a.counts_BV.astype(np.float32) - a.presence_B * (a.counts_BV > 0)


def test_adjusted_logits_have_the_bits_of_rounding_every_step():
    logits_BV, adjustments = normal_logits(4, V), adjustments_of(4, seed=6)
    adjusted_BV = jax.jit(adjust)(jnp.asarray(logits_BV), adjustments)
    assert np.array_equal(adjusted_BV, [oracle_adjusted(logits_BV[b], adjustments, b) for b in range(4)])


def test_scaled_logits_have_the_bits_of_a_float32_division():
    logits_BV, temperature_B = normal_logits(4, V), np.array([0.7, 1.3, 3.1, 1e-5], np.float32)
    params = params_of([Row(temperature=float(t)) for t in temperature_B])
    z_BV = jax.jit(scale)(jnp.asarray(logits_BV), all_valid(V), params).z_BV
    assert np.array_equal(z_BV, logits_BV / temperature_B[:, None])
    assert not np.array_equal(z_BV, logits_BV * (1 / temperature_B)[:, None])


@pytest.mark.parametrize("seed", [3, 4])
def test_adjusted_draws_equal_the_float64_oracle(seed):
    rows, logits_BV = at(KINDS, 900), normal_logits(len(KINDS), V, seed)
    adjustments = adjustments_of(len(KINDS), seed)
    token_B, finite_B = drawn_adjusted(jnp.asarray(logits_BV), all_valid(V), params_of(rows), adjustments)
    expected = [oracle_token(oracle_adjusted(logits_BV[b], adjustments, b), row) for b, row in enumerate(rows)]
    assert token_B.tolist() == expected
    assert finite_B.all()
    assert token_B.tolist() != tokens(logits_BV, rows)


def test_neutral_adjustments_change_nothing():
    rows, logits_BV = at(KINDS, 40), normal_logits(len(KINDS), V)
    ones_B, zeros_BV = jnp.ones(len(rows), jnp.float32), jnp.zeros(logits_BV.shape, jnp.float32)
    neutral = Adjustments(
        bias_BV=zeros_BV,
        counts_BV=jnp.full(logits_BV.shape, 3, jnp.int32),
        seen_BV=zeros_BV == 0,
        presence_B=0 * ones_B,
        frequency_B=0 * ones_B,
        repetition_B=ones_B,
    )
    token_B, _ = drawn_adjusted(jnp.asarray(logits_BV), all_valid(V), params_of(rows), neutral)
    assert token_B.tolist() == tokens(logits_BV, rows)


def keeps_rows_apart(draw_rows: Callable[[np.ndarray, list[Row]], list[int]]) -> bool:
    """Whether each row draws the same token alone, at any index, in other company and among other numbers of rows."""
    rows, logits_BV = at(KINDS, 300), normal_logits(len(KINDS), V, seed=9)
    together = draw_rows(logits_BV, rows)
    equal = True
    for shift in (1, 5, 10):
        turned = draw_rows(np.roll(logits_BV, shift, axis=0), rows[-shift:] + rows[:-shift])
        equal &= turned == together[-shift:] + together[:-shift]
    for width in (1, 3):
        for start in range(0, len(rows) - width + 1, width):
            part = slice(start, start + width)
            equal &= draw_rows(logits_BV[part], rows[part]) == together[part]
    return equal


def test_a_row_does_not_depend_on_its_company():
    assert keeps_rows_apart(tokens)
    assert not keeps_rows_apart(lambda logits, rows: tokens(logits, [replace(row, seed=rows[0].seed) for row in rows]))
    assert not keeps_rows_apart(
        lambda logits, rows: tokens(logits, [replace(row, position=i) for i, row in enumerate(rows)])
    )


def test_branches_that_other_rows_open_change_no_row():
    """Greedy, unfiltered, filtered and widened rows each open a branch for the whole batch."""
    quartet = [Row(temperature=0.0), Row(), Row(top_k=20, top_p=0.95), Row(top_p=0.99, temperature=9.0)]
    rows, logits_BV = at(quartet, 77), normal_logits(4, WIDE, seed=2)
    together = tokens(logits_BV, rows, candidates=64)
    for b, row in enumerate(rows):
        same_kind = [replace(row, position=p) for p in (row.position, 5, 6, 7)]
        assert tokens(np.roll(logits_BV, -b, axis=0), same_kind, candidates=64)[0] == together[b]


def test_draws_do_not_depend_on_the_surrounding_program():
    rows, logits_BV = at(KINDS, 12), jnp.asarray(normal_logits(len(KINDS), V, seed=5))
    params, valid_V = params_of(rows), all_valid(V)

    @jax.jit
    def with_more(logits_BV, params):
        doubled = logits_BV * jnp.float32(2)
        return draw(logits_BV, valid_V, params)[0], jax.nn.softmax(doubled), doubled.sum(axis=1)

    def step(carry, row):
        one_logits, one_params = jax.tree.map(lambda leaf: leaf[None], row)
        return carry, draw(one_logits, valid_V, one_params)[0][0]

    expected = drawn(logits_BV, valid_V, params)[0].tolist()
    assert with_more(logits_BV, params)[0].tolist() == expected
    assert jax.lax.scan(step, 0, (logits_BV, params))[1].tolist() == expected


@pytest.mark.parametrize("spoiler", [np.nan, np.inf, -np.inf])
def test_a_non_finite_row_is_reported_and_touches_no_other(spoiler):
    rows, logits_BV = at(KINDS, 8), normal_logits(len(KINDS), V)
    clean = tokens(logits_BV, rows)
    for bad in range(0, len(rows), 3):
        spoiled_BV = logits_BV.copy()
        spoiled_BV[bad, [3, 200]] = spoiler
        token_B, finite_B = drawn(jnp.asarray(spoiled_BV), all_valid(V), params_of(rows))
        others = [b for b in range(len(rows)) if b != bad]
        assert finite_B.tolist() == [b != bad for b in range(len(rows))]
        assert 0 <= int(token_B[bad]) < V
        assert [int(token_B[b]) for b in others] == [clean[b] for b in others]


CHANGES = [{"seed": 8}, {"seed": 7 + (1 << 32)}, {"choice": 1}, {"choice": 2}]


def test_seed_choice_and_position_each_change_the_draws():
    logits_BV = np.zeros((16, V), np.float32)
    base = [Row(position=p) for p in range(16)]
    variants = [base, *([replace(row, **change) for row in base] for change in CHANGES)]
    draws = {tuple(tokens(logits_BV, rows)) for rows in variants}
    assert len(draws) == len(variants)
    assert tokens(logits_BV, base) == tokens(logits_BV, base)


@pytest.mark.parametrize("row", [Row(), Row(temperature=2.0), Row(top_k=5), Row(top_p=0.8), Row(min_p=0.2)], ids=str)
def test_frequencies_over_positions_follow_the_filtered_distribution(row):
    """8192 fixed draws: each share lies within five standard deviations of its exact probability."""
    logits_V = np.array([2, 1.5, 1, 0.5, 0, -1, -2, -4], np.float32)
    positions = 8192
    params = params_of([replace(row, position=p) for p in range(positions)])
    token_B, _ = drawn(jnp.tile(jnp.asarray(logits_V), (positions, 1)), all_valid(8), params)
    z_V = logits_V / np.float32(row.temperature)
    share_V = np.zeros(8)
    share_V[oracle_kept(z_V, row)] = np.exp(z_V[oracle_kept(z_V, row)].astype(float))
    share_V /= share_V.sum()
    seen_V = np.bincount(np.asarray(token_B), minlength=8) / positions
    assert np.all(np.abs(seen_V - share_V) <= 5 * np.sqrt(share_V * (1 - share_V) / positions))
    assert not seen_V[share_V == 0].any()


def test_one_program_serves_all_kinds_of_rows():
    traces = []

    @jax.jit
    def counted(logits_BV, params):
        traces.append(logits_BV.shape)
        return draw(logits_BV, all_valid(V), params)

    for row in KINDS:
        counted(jnp.zeros((16, V), jnp.float32), params_of([row] * 16))
    assert traces == [(16, V)]


def test_full_size_draws_equal_the_oracle():
    rows = at([Row(top_k=20, top_p=0.95), Row(top_p=0.5), Row(min_p=0.1), Row(temperature=0.0)], 1000)
    logits_BV = normal_logits(4, 248320)
    expected = [oracle_token(*pair) for pair in zip(logits_BV, rows, strict=True)]
    assert tokens(logits_BV, rows) == expected


def test_misfitting_arguments_are_refused_by_name():
    logits_BV, params = jnp.zeros((2, V), jnp.float32), params_of([Row(), Row()])
    with pytest.raises(ValueError, match="bfloat16"):
        draw(logits_BV.astype(jnp.bfloat16), all_valid(V), params)
    with pytest.raises(ValueError, match=r"valid is bool \(4,\)"):
        draw(logits_BV, all_valid(4), params)
    with pytest.raises(ValueError, match=r"choice_B has shape \(1,\)"):
        draw(logits_BV, all_valid(V), params_of([Row()]))
    with pytest.raises(ValueError, match="0 candidates"):
        draw(logits_BV, all_valid(V), params, candidates=0)
    with pytest.raises(ValueError, match="bias_BV"):
        draw_adjusted(logits_BV, all_valid(V), params, adjustments_of(3, 0))
