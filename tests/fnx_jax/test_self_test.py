"""The self-test passes on a sound model, and refuses one whose rows see their company or are not finite."""

import numpy as np
import pytest

from fnx_jax.lanes import teacher
from fnx_jax.self_test import SelfTestError, self_test


@pytest.fixture
def steps(exact_model):
    """The lanes of a sound model."""
    return exact_model("base").steps


def test_a_sound_model_passes(steps):
    self_test(steps)


def test_a_row_that_sees_its_neighbours_is_refused(steps, monkeypatch):
    sound = teacher.piece_logits

    def leaky(steps, token_T, start, stop, company=None):
        found = sound(steps, token_T, start, stop, company)
        return found if company is None else found + np.float32(1e-6)

    monkeypatch.setattr(teacher, "piece_logits", leaky)
    with pytest.raises(SelfTestError, match="row 0 .* cut into 21 pieces"):
        self_test(steps)


def test_a_row_that_is_not_finite_is_refused(steps, monkeypatch):
    sound = teacher.logits

    def broken(steps, token_T):
        found = sound(steps, token_T)
        found[3, 5] = np.nan
        return found

    monkeypatch.setattr(teacher, "logits", broken)
    with pytest.raises(SelfTestError, match="row 3 .* non-finite"):
        self_test(steps)
