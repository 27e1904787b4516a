"""Host side: what a check of a trial says. Read next: checks.py, which makes cells, and log.py, which keeps them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["equal", "unequal", "unchecked", "refused"]


@dataclass(frozen=True)
class Cell:
    """One comparison. rows: compared. evidence: what was exercised, counted. first: the first difference, or why not.

    A refusal counts as such where it names what the devices do not divide, as unequal where it does not.
    """

    check: str
    devices: int
    dtype: str
    status: Status
    rows: int = 0
    evidence: Mapping[str, int] = field(default_factory=dict)
    first: str = ""


def failed(cells: Iterable[Cell]) -> bool:
    """Whether anything was unequal or unchecked."""
    return any(cell.status in ("unequal", "unchecked") for cell in cells)
