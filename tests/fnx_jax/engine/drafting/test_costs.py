"""Costs from few and noisy times."""

import numpy as np
import pytest

from fnx_jax.engine.drafting.costs import Costs


def true_ms(rows):
    return 10 + 0.5 * rows


def learnt(rows, times, rate=0.05, spike=1.0):
    costs, rng = Costs(rate), np.random.default_rng(0)
    for _ in range(times):
        for row in rows:
            costs.note_round(1, row, true_ms(row) * (1 + 0.1 * rng.standard_normal()))
    costs.note_round(1, rows[-1], true_ms(rows[-1]) * spike)
    return costs


def test_costs_come_from_noisy_times_between_and_beyond_what_was_timed():
    costs = learnt((1, 4, 8), 60)
    for row in (1, 2, 4, 6, 8, 12):
        assert costs.round_ms(1, row) == pytest.approx(true_ms(row), rel=0.06)


def test_one_time_five_times_too_long_changes_little():
    before, after = learnt((1, 4, 8), 60), learnt((1, 4, 8), 60, spike=5)
    assert after.round_ms(1, 8) < 1.05 * before.round_ms(1, 8)


def test_a_first_time_is_doubted_and_a_steep_cost_believed_when_it_repeats():
    costs = Costs(0.05)
    costs.note_round(1, 1, 10)
    costs.note_round(1, 5, 50)
    assert costs.round_ms(1, 2) < 12
    for _ in range(8):
        costs.note_round(1, 5, 50)
    assert costs.round_ms(1, 5) == pytest.approx(50, rel=0.1)
    assert costs.round_ms(1, 1) == pytest.approx(10, rel=0.1)


def test_a_first_draft_call_that_took_far_too_long_is_doubted():
    costs = Costs(0.05)
    costs.note_round(1, 1, 10)
    costs.note_head(1, 1, 500)
    assert costs.head_ms(1, 1) < 5
    for _ in range(20):
        costs.note_head(1, 1, 50)
    assert costs.head_ms(1, 1) == pytest.approx(50, rel=0.1)


def test_another_width_lends_its_slope_until_the_own_one_is_known():
    costs = Costs(0.05)
    for _ in range(20):
        costs.note_round(1, 1, 10)
        costs.note_round(1, 9, 18)
        costs.note_round(2, 2, 30)
    assert costs.round_ms(2, 10) == pytest.approx(38, rel=0.05)
    assert costs.round_ms(3, 3) == pytest.approx(costs.round_ms(2, 3))


def test_a_table_can_be_written_and_read():
    costs = learnt((1, 4), 5)
    costs.note_head(1, 2, 3.0)
    again = Costs.of(costs.table(), 0.05)
    assert again.table() == costs.table()
    with pytest.raises(ValueError, match="round and head"):
        Costs.of({"rounds": {}}, 0.05)
    with pytest.raises(ValueError, match="round 1 0"):
        Costs.of({"round": {"1": {"0": 3.0}}, "head": {}}, 0.05)
    with pytest.raises(ValueError, match="no round"):
        Costs(0.05).round_ms(1, 1)


@pytest.mark.parametrize("seed", (12, 25, 39))
def test_no_time_is_expected_to_be_none_however_wild_those_measured_are(seed):
    rng, costs = np.random.default_rng(seed), Costs(0.05)
    for _ in range(40):
        costs.note_round(1, int(rng.integers(1, 17)), 10 ** rng.uniform(-1, 2.5))
    assert min(costs.round_ms(1, rows) for rows in range(1, 17)) > 0
