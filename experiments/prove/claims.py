"""Host side: the six equalities, and what the cells say about each."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.prove.cells import Cell
from experiments.prove.compare import Difference
from experiments.prove.features import FEATURES, missing, signs, surface

CLAIMS: Mapping[str, Callable[[Cell], bool]] = {
    "solo": lambda cell: cell.streams > 1,
    "plain": lambda cell: cell.drafts != "off",
    "fresh": lambda cell: cell.start != "fresh",
    "chunk": lambda cell: cell.chunk > 1 or cell.prefill != "tiles",
    "ranks": lambda cell: cell.tp > 1,
    "place": lambda cell: cell.place != "resident",
}
"""Which cells differ from the reference in the claim's subject. A cell speaks for every claim that it is in."""


@dataclass(frozen=True)
class Result:
    """A cell that ran. unexercised: what it failed to put to the test. error: where it did not run to its end.

    cell, evidence: a `Cell` with an `Evidence`, or an `http.HttpCell` with an `http.Seen`.
    """

    cell: Any
    differences: tuple[Difference, ...] = ()
    unexercised: tuple[str, ...] = ()
    margin: float = float("inf")
    seconds: float = 0.0
    evidence: Any = None
    error: str | None = None

    @property
    def unequal(self) -> bool:
        """Whether it differs from the reference, or failed."""
        return bool(self.differences or self.error)


@dataclass(frozen=True)
class Unchecked:
    """Something that was not put to the test, why, and whether that is as expected."""

    what: str
    why: str
    expected: bool


@dataclass
class Tally:
    """One claim's line of the table."""

    claim: str
    cells: int = 0
    equal: int = 0
    unequal: int = 0
    unchecked: int = 0
    first: str = ""
    margin: float = float("inf")
    unexpected: list[Unchecked] = field(default_factory=list)


def waiting(cells: Sequence[Cell], shown: Mapping[str, frozenset[str]] | None = None) -> list[Unchecked]:
    """The values in cells that nothing runs yet. Unexpected where the system shows signs of them."""
    shown = surface() if shown is None else shown
    values = dict.fromkeys(value for cell in cells for value in missing(cell))
    found = []
    for axis, value in values:
        feature = FEATURES[axis, value]
        names = signs(feature, shown)
        why = f"the system shows {', '.join(names)}, but this program does not run it" if names else ""
        found.append(Unchecked(f"{axis}={value}", why or f"comes with {feature.brought_by}", expected=not names))
    return found


def tally(results: Sequence[Result], not_run: Sequence[Cell], left_out: Collection[str] = ()) -> list[Tally]:
    """The table's lines, in the order of CLAIMS. left_out: claims that the caller did not ask about."""
    return [_tally(claim, results, not_run, claim in left_out) for claim in CLAIMS]


def _tally(claim: str, results: Sequence[Result], not_run: Sequence[Cell], left_out: bool) -> Tally:
    line = Tally(claim)
    line.unchecked = sum(CLAIMS[claim](cell) and bool(missing(cell)) for cell in not_run)
    for result in results:
        if not CLAIMS[claim](result.cell):
            continue
        line.cells += 1
        line.margin = min(line.margin, result.margin)
        if result.unequal:
            line.unequal += 1
            line.first = line.first or result.error or str(result.differences[0])
        elif result.unexercised:
            line.unchecked += 1
            why = "; ".join(result.unexercised)
            line.unexpected.append(Unchecked(str(result.cell), why, expected=False))
        else:
            line.equal += 1
    if not line.cells and not line.unchecked and not left_out:
        line.unexpected.append(Unchecked(claim, "no cell was about it", expected=False))
    if claim == "solo" and line.cells and not any(r.evidence and r.evidence.mixed for r in results):
        line.unexpected.append(Unchecked(claim, "no tile held rows of a prompt and of a reply", expected=False))
    return line


def green(tallies: Sequence[Tally], unchecked: Sequence[Unchecked]) -> bool:
    """Whether nothing is unequal and nothing is unexpectedly unchecked."""
    return not any(line.unequal or line.unexpected for line in tallies) and all(u.expected for u in unchecked)
