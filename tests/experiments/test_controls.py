"""Planted controls: the list covers every rule, faults are found out, and a check that is idle or red says so."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.prove.controls import CONTROLS
from experiments.prove.controls.control import Plant, planted
from experiments.prove.controls.staging import PADDED, one_ahead
from fnx_jax.engine import conclude
from fnx_jax.lanes.tiles import Tile

RULES = {"3", "3.0", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "4", "5", "6", "7"}
CHEAP = (
    "router_ties_upwards",
    "block_ties_upwards",
    "stop_after_the_window",
    "draft_emitted_unseen",
    "penalties_count_drafts",
    "draws_to_the_wrong_lanes",
    "page_given_twice",
    "pages_of_a_neighbour",
)


@pytest.fixture
def product() -> SimpleNamespace:
    """Something to plant in."""
    return SimpleNamespace(answer=42)


def test_names_are_unique_and_every_rule_has_a_control():
    assert [name for name, count in Counter(control.name for control in CONTROLS).items() if count > 1] == []
    assert len(CONTROLS) >= 20
    assert {control.rule for control in CONTROLS} == RULES
    assert all(control.breaks for control in CONTROLS)


@pytest.mark.parametrize("name", CHEAP)
def test_a_fault_is_found_out(name):
    (control,) = [control for control in CONTROLS if control.name == name]
    outcome = control.run()
    assert outcome.red, outcome.evidence
    assert any(character.isdigit() for character in outcome.evidence)


def test_rows_staged_ahead_are_those_of_the_next_tile():
    values = np.arange(20)
    first, last = Tile(0, 16, (), ()), Tile(16, 4, (), ())
    assert list(one_ahead(values, first)) == [16, 17, 18, 19, *range(4, 16)]
    assert list(one_ahead(values, last)) == list(PADDED(values, last))


def test_what_was_planted_is_gone_afterwards():
    accept = conclude._accept
    next(control for control in CONTROLS if control.name == "stop_after_the_window").run()
    assert conclude._accept is accept


def test_a_fault_that_changes_nothing_is_not_red(product):
    def check() -> str | None:
        return None if product.answer == 42 else "another answer"

    idle = planted("idle", "3", "nothing", check, Plant(product, "answer", 42)).run()
    seen = planted("seen", "3", "the answer", check, Plant(product, "answer", 43)).run()
    assert (idle.red, seen.red, seen.evidence) == (False, True, "another answer")


def test_a_check_that_is_red_by_itself_proves_nothing(product):
    outcome = planted("red", "3", "the answer", lambda: "red already", Plant(product, "answer", 43)).run()
    assert not outcome.red and "red already" in outcome.evidence
    assert product.answer == 42


def test_controls_of_one_check_share_its_run_without_a_fault(product):
    answers = []

    def check() -> str | None:
        answers.append(product.answer)
        return "another answer" if product.answer != 42 else None

    for answer in (1, 2):
        assert planted("twin", "3", "the answer", check, Plant(product, "answer", answer)).run().red
    assert answers == [42, 1, 2]
