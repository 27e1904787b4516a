"""The account of drafts: what it covers, what is paid in, and that gains are not kept for ever."""

import random

import pytest

from fnx_jax.engine.drafting.ledger import Ledger
from fnx_jax.engine.drafting.settings import DraftSettings

SETTINGS = DraftSettings(loss_rounds=2.0, loss_share=0.01, gain_rounds=8.0)


def test_it_opens_with_plain_rounds_and_is_used_up_by_losses():
    ledger = Ledger(SETTINGS)
    assert ledger.spare_ms(10.0) == pytest.approx(20)
    ledger.book(-25.0, 0.0, 10.0)
    assert ledger.spare_ms(10.0) == 0.0


def test_all_time_pays_in_its_share():
    ledger = Ledger(SETTINGS)
    ledger.book(-20.0, 0.0, 10.0)
    for _ in range(100):
        ledger.book(0.0, 10.0, 10.0)
    assert ledger.spare_ms(10.0) == pytest.approx(10)


def test_gains_are_kept_for_so_many_rounds_and_no_more():
    ledger = Ledger(SETTINGS)
    ledger.book(1e6, 0.0, 10.0)
    assert ledger.spare_ms(10.0) == pytest.approx(80)


def test_whatever_happens_over_any_stretch_no_more_is_lost_than_it_holds_and_the_share():
    rng, ledger, gains = random.Random(0), Ledger(SETTINGS), []
    for _ in range(3000):
        risk = rng.uniform(0, 40)
        tried = risk <= ledger.spare_ms(10.0)
        gain = rng.uniform(-risk, rng.choice([-risk, 30.0])) if tried else 0.0
        ledger.book(gain, 10.0, 10.0)
        gains.append(gain + SETTINGS.loss_share * 10.0)
    worst = least = 0.0
    for gain in gains:
        worst = min(0.0, worst + gain)
        least = min(least, worst)
    assert -80 - 1e-6 <= least < -40


def test_settings_name_what_is_wrong():
    with pytest.raises(ValueError, match="loss_rounds=9"):
        DraftSettings(loss_rounds=9.0)
    with pytest.raises(ValueError, match="loss_share=1"):
        DraftSettings(loss_share=1.0)
