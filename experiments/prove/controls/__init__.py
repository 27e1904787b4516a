"""Planted controls: twins of the product that break one rule each, and the checks that must find them out.

A check that stays green beside a fault proves nothing where there is none. Read next: control.py, then recurrence.py.
"""

from experiments.prove.controls import attention, draws, experts, flags, host, recurrence, sums, ties, vocabulary
from experiments.prove.controls.control import Control, Outcome

FAMILIES = (recurrence, attention, experts, sums, vocabulary, draws, host, ties, flags)

CONTROLS: tuple[Control, ...] = tuple(control for family in FAMILIES for control in family.CONTROLS)
"""Every control, those of one check side by side as far as a family goes."""

__all__ = ["CONTROLS", "Control", "Outcome"]
