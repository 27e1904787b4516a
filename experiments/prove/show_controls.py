"""Host side: runs the planted controls, deliberately wrong programs, and shows whether each is found out."""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from checkpoints.commands import UsageError

PACKAGE = "experiments.prove.controls"


class Outcome(Protocol):
    """red: whether the check found the fault. evidence: in words."""

    red: bool
    evidence: str


class Control(Protocol):
    """name, rule: what it is called, and which rule it breaks. breaks: how. run: plants it and runs the check."""

    name: str
    rule: str
    breaks: str
    run: Callable[[], Any]


def all_controls() -> Sequence[Control]:
    """The controls of this source. Raises UsageError where there are none."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise UsageError(f"--controls: there is no {PACKAGE}")
    return importlib.import_module(PACKAGE).CONTROLS


def show(controls: Sequence[Control], say: Callable[[str], None]) -> bool:
    """Runs each and says what it found. Returns whether there are some and all are red."""
    red = [_show(control, say) for control in controls]
    say(f"{sum(red)} of {len(red)} controls are red")
    return bool(red) and all(red)


def _show(control: Control, say: Callable[[str], None]) -> bool:
    try:
        outcome: Outcome = control.run()
    except Exception as error:  # a check that breaks down has found nothing
        say(f"BROKEN {control.name} ({control.rule}): {control.breaks}: {type(error).__name__}: {error}")
        return False
    say(
        f"{'red   ' if outcome.red else 'GREEN '} {control.name} ({control.rule}): {control.breaks}: {outcome.evidence}"
    )
    return outcome.red
