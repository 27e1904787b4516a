"""Round times to prompt rows, with made-up times."""

import pytest

from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.stall import RoundTimes, prompt_rows_most

CONFIG = EngineConfig(prefill_chunk=256, stall_rows=64, max_prefill_stall_ms=30)


def times(*rounds):
    learned = RoundTimes()
    for prompt_rows, seconds in rounds:
        learned.note(prompt_rows, seconds)
    return learned


def test_rows_follow_the_cost_of_a_round_and_of_a_row():
    assert times((0, 0.01), (10, 0.02)).rows_within(0.03) == pytest.approx(20)


def test_nothing_is_known_before_both_kinds_of_round():
    assert times().rows_within(1.0) is None
    assert times((10, 0.02)).rows_within(1.0) is None
    assert times((0, 0.02)).rows_within(1.0) is None


def test_newer_rounds_move_the_estimate():
    assert times((0, 0.01), (10, 0.02), (10, 0.03)).rows_within(0.036) == pytest.approx(20)


@pytest.mark.parametrize(
    ("learned", "rows"),
    [
        (times(), 64),
        (times((0, 1 / 128), (8, 2 / 128)), 22),
        (times((0, 0.04), (10, 0.05)), 16),
        (times((0, 0.01), (10, 0.009)), 256),
        (times((0, 0.001), (1000, 0.002)), 256),
    ],
)
def test_rows_stay_between_a_tile_and_the_chunk(learned, rows):
    assert prompt_rows_most(CONFIG, learned, True, 16) == rows
    assert prompt_rows_most(CONFIG, learned, False, 16) == 256


def test_without_a_time_limit_the_cap_is_rows_alone():
    config = EngineConfig(prefill_chunk=256, stall_rows=64)
    assert prompt_rows_most(config, times((0, 0.01), (10, 0.02)), True, 16) == 64
