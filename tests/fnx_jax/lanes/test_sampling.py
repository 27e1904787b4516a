"""The draw against a float64 NumPy oracle, exact cuts, and what a row's token may depend on."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnx_jax.lanes.sampling import Adjustments, DrawParams, draw, draw_adjusted, kept_candidates, scale
from pallas_kernels.keyed_noise import seed_words

V = 320
WIDE = 4096

drawn = jax.jit(draw, static_argnames="candidates")
drawn_adjusted = jax.jit(draw_adjusted)


@dataclass(frozen=True)
class Row:
    """One row's parameters, in the order of DrawParams."""

    seed: int = 7
    choice: int = 0
    position: int = 100
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


KINDS = [
    Row(),
    Row(temperature=0.0),
    Row(temperature=0.0, top_k=5, top_p=0.5, min_p=0.2),
    Row(top_k=20, top_p=0.95),
    Row(top_k=1),
    Row(top_k=3, temperature=2.5),
    Row(top_p=0.9),
    Row(top_p=0.3, temperature=0.7),
    Row(top_p=1e-9),
    Row(min_p=0.05),
    Row(min_p=1.0),
    Row(top_k=50, top_p=0.8, min_p=0.02, temperature=1.3),
    Row(temperature=1e-5, seed=1 << 40),
    Row(top_k=V, choice=3),
    Row(top_p=0.999, seed=(1 << 64) - 1),
    Row(temperature=8.0, choice=1),
]


def at(rows: list[Row], position: int) -> list[Row]:
    return [replace(row, position=position + index) for index, row in enumerate(rows)]


def params_of(rows: list[Row]) -> DrawParams:
    def column(name: str, dtype) -> jax.Array:
        return jnp.asarray(np.array([getattr(row, name) for row in rows], dtype))

    return DrawParams(
        seed_B2=jnp.asarray(np.stack([seed_words(row.seed) for row in rows])),
        choice_B=column("choice", np.int32),
        position_B=column("position", np.int32),
        temperature_B=column("temperature", np.float32),
        top_k_B=column("top_k", np.int32),
        top_p_B=column("top_p", np.float32),
        min_p_B=column("min_p", np.float32),
    )


def normal_logits(rows: int, vocabulary: int, seed: int = 0) -> np.ndarray:
    return (3 * np.random.default_rng(seed).standard_normal((rows, vocabulary))).astype(np.float32)


def all_valid(vocabulary: int) -> jax.Array:
    return jnp.ones(vocabulary, bool)


def tokens(logits_BV: np.ndarray, rows: list[Row], **options) -> list[int]:
    token_B, finite_B = drawn(jnp.asarray(logits_BV), all_valid(logits_BV.shape[1]), params_of(rows), **options)
    assert finite_B.all()
    return token_B.tolist()


def threefry(k0, k1, x0, x1) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32-20 in NumPy uint32."""
    keys = np.array([k0, k1, np.uint32(k0) ^ np.uint32(k1) ^ np.uint32(0x1BD11BDA)], np.uint32)
    x0, x1 = np.asarray(x0, np.uint32) + keys[:1], np.asarray(x1, np.uint32) + keys[1:2]
    for step in range(20):
        turn = (13, 15, 26, 6, 17, 29, 16, 24)[step % 8]
        x0 = x0 + x1
        x1 = ((x1 << np.uint32(turn)) | (x1 >> np.uint32(32 - turn))) ^ x0
        if step % 4 == 3:
            turn = step // 4 + 1
            x0, x1 = x0 + keys[turn % 3], x1 + keys[(turn + 1) % 3] + np.uint32(turn)
    return x0, x1


def oracle_noise(row: Row, ids: list[int]) -> np.ndarray:
    low, high = seed_words(row.seed)
    key = threefry(low, high, [row.position], [row.choice])
    top, rest = threefry(key[0][0], key[1][0], ids, np.zeros(len(ids)))
    bits = [int(t) << 32 | int(r) for t, r in zip(top, rest, strict=True)]
    cut = [max(b.bit_length() - 24, 0) for b in bits]
    v = np.array([max(float(b >> c << c), 0.5) * 2.0**-64 for b, c in zip(bits, cut, strict=True)])
    return -np.log(-np.log1p(-v))


def oracle_kept(z_V: np.ndarray, row: Row, tie: int = 1) -> list[int]:
    """Ids kept by top_k, top_p and min_p, in order; masses and the nucleus in exact integers. tie=-1 swaps ties."""
    order = np.lexsort((tie * np.arange(len(z_V)), -z_V))
    order = order[: row.top_k] if row.top_k else order
    masses = np.floor(np.exp(z_V[order].astype(float) - float(z_V.max())) * 2.0**40).astype(int).tolist()
    bound = Fraction(max(1, round(Fraction(float(np.float32(row.top_p))) * 2**24)), 2**24) * sum(masses)
    kept, running = [], 0
    for i, mass in zip(order.tolist(), masses, strict=True):
        if row.top_p < 1 and running >= bound:
            break
        running += mass
        if z_V[i] > -np.inf and (not row.min_p or z_V[i] >= float(z_V.max()) + np.log(row.min_p)):
            kept.append(i)
    return kept


def oracle_token(adjusted_V: np.ndarray, row: Row, tie: int = 1) -> int:
    if row.temperature < 1e-5:
        return int(np.argmax(adjusted_V))
    z_V = adjusted_V.astype(np.float32) / np.float32(row.temperature)
    kept = oracle_kept(z_V, row, tie)
    scores = z_V[kept] + oracle_noise(row, kept)
    return min(zip(-scores, kept, strict=True))[1]


@pytest.mark.parametrize("position", [1, 5000, 262000])
def test_draws_equal_the_float64_oracle(position):
    rows, logits_BV = at(KINDS, position), normal_logits(len(KINDS), V, seed=position)
    expected = [oracle_token(logits_V, row) for logits_V, row in zip(logits_BV, rows, strict=True)]
    assert tokens(logits_BV, rows) == expected
    assert len(set(expected)) > len(expected) // 2


def test_ties_at_every_cut_go_to_the_lower_id_and_the_swapped_order_is_told_apart():
    rows = [replace(row, top_k=12, top_p=0.7, position=p) for p, row in enumerate([Row()] * 16)]
    logits_BV = np.random.default_rng(1).integers(0, 2, (16, V)).astype(np.float32)
    pairs = list(zip(logits_BV, rows, strict=True))
    assert tokens(logits_BV, rows) == [oracle_token(*pair) for pair in pairs]
    assert tokens(logits_BV, rows) != [oracle_token(*pair, tie=-1) for pair in pairs]


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


def test_zeros_of_both_signs_tie():
    logits_V = np.zeros(V, np.float32)
    logits_V[::2] = -0.0
    assert kept_ids(logits_V, Row(top_k=6)) == list(range(6))
    assert tokens(logits_V[None], [Row(temperature=0.0)]) == [0]


def test_a_full_nucleus_keeps_ids_whose_mass_rounds_to_zero():
    logits_V = np.array([0, -60, -20], np.float32)
    assert kept_ids(logits_V, Row(top_k=3)) == [0, 2, 1]
    assert kept_ids(logits_V, Row(top_k=3, top_p=1 - 2**-24)) == [0]


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
