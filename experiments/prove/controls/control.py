"""Host side: what a planted control is: a check that is green, and the same check beside a deliberately wrong twin.

A twin replaces one name of a module that the product calls, for as long as one check runs. Read next: streams.py.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import jax

Check = Callable[[], str | None]
"""Loads what it needs, exercises a claim, and returns the first difference in words, None where all is equal."""


@dataclass(frozen=True)
class Outcome:
    """red: whether the check saw the fault. evidence: the first difference it met, or why there is none."""

    red: bool
    evidence: str


@dataclass(frozen=True)
class Control:
    """name: unique. rule: the rule that is broken, as its sections are numbered. breaks: how, in a sentence."""

    name: str
    rule: str
    breaks: str
    run: Callable[[], Outcome]


@dataclass(frozen=True)
class Plant:
    """A module or class, the name that the product looks up there, and what it finds instead."""

    owner: Any
    name: str
    twin: Any


def planted(name: str, rule: str, breaks: str, check: Check, *plants: Plant) -> Control:
    """A control whose check must turn red while the plants stand."""

    def run() -> Outcome:
        without = without_plants(check)
        if without is not None:
            return Outcome(False, f"the check is not green without the fault: {without}")
        with planting(plants):
            found = check()
        return Outcome(found is not None, found or "no difference")

    return Control(name, rule, breaks, run)


@cache
def without_plants(check: Check) -> str | None:
    """The check's own result, run once however many controls share it."""
    return check()


@contextmanager
def planting(plants: tuple[Plant, ...]) -> Iterator[None]:
    """Puts the twins in place; programs compiled before are not used inside, nor those from inside afterwards."""
    with ExitStack() as stack:
        stack.callback(jax.clear_caches)
        jax.clear_caches()
        for plant in plants:
            stack.enter_context(patch.object(plant.owner, plant.name, plant.twin))
        yield
