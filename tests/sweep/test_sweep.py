"""An op's bits do not depend on the program around it, with the flags; without them they do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweep.case import Case
from tests.sweep.compare import GROUPS, differing
from tests.sweep.contexts import CONTEXTS
from tests.sweep.controls import CONTROLS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=GROUPS)
def cases(request) -> dict[str, Case]:
    """One group of ops."""
    return GROUPS[request.param]()


@pytest.mark.parametrize("context", CONTEXTS)
def test_bits_are_those_of_the_op_alone(context, cases):
    assert differing(cases, context) == {}


@pytest.fixture(scope="module")
def caught() -> set[str]:
    """The wrong twins that differ in some context."""
    return {name for context in CONTEXTS for name in differing(CONTROLS, context)}


@pytest.mark.parametrize("control", CONTROLS)
def test_a_wrong_twin_is_caught(control, caught):
    assert control in caught


def test_without_the_flags_bits_depend_on_the_program():
    command = [sys.executable, "-m", "tests.sweep.run", "--noflags", "--contexts=intermediates_returned,fused"]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [*command, "--ops=hyper_read,l2_normalise,centred_rms_2560"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert any(json.loads(done.stdout).values())
