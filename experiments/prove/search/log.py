"""Host side: a search's trials as JSON lines, written one by one, so that a search goes on where it was stopped."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from experiments.prove.search.cells import Cell, failed
from experiments.prove.search.trials import Trial, draw_trial


@dataclass(frozen=True)
class Line:
    """One trial and what came of it."""

    trial: Trial
    cells: tuple[Cell, ...]
    seconds: float


@dataclass
class Log:
    """Lines by trial number. Those of another seed, fingerprint or drawing of the trial do not count.

    fingerprint: of the backend that computes.
    """

    path: Path | None
    seed: int
    fingerprint: str
    done: dict[int, Line] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            for text in self.path.read_text().splitlines():
                self._take(json.loads(text))

    def add(self, line: Line, verbose: bool = False) -> None:
        """Prints a trial's line and appends it to the file; an unequal or unchecked cell with how to repeat it."""
        self.done[line.trial.number] = line
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(self._entry(line), sort_keys=True) + "\n")
        counts = Counter(cell.status for cell in line.cells)
        print(f"trial {line.trial.number}: {_counts(counts)}, {line.seconds:.0f} s", flush=True)
        for cell in line.cells:
            if verbose or failed([cell]):
                print(f"  {cell.status} {cell.check} devices={cell.devices} {cell.dtype} {cell.first} {cell.evidence}")
        if failed(line.cells):
            print(f"  python -m experiments.prove.search --seed {self.seed} --only {line.trial.number}")
            print(f"  {json.dumps(asdict(line.trial))}", flush=True)

    def figures(self, numbers: Iterable[int]) -> dict[str, int]:
        """Cells by status, and by check and status, rows compared, and what was exercised in all."""
        figures: Counter = Counter()
        for number in numbers:
            figures["trials"] += 1
            for cell in self.done[number].cells:
                figures[cell.status] += 1
                figures[f"{cell.check} on {cell.devices}: {cell.status}"] += 1
                figures["rows compared"] += cell.rows if cell.status == "equal" else 0
                for name, count in cell.evidence.items():
                    if cell.check != "reference":
                        figures[f"exercised {name}"] += count
        return dict(sorted(figures.items()))

    def summary(self, numbers: Iterable[int]) -> str:
        """The figures, one a line."""
        return "\n".join(f"{count:>9} {name}" for name, count in self.figures(numbers).items())

    def _entry(self, line: Line) -> dict:
        return {
            "seed": self.seed,
            "number": line.trial.number,
            "trial": _digest(line.trial),
            "fingerprint": self.fingerprint,
            "seconds": round(line.seconds, 1),
            "cells": [asdict(cell) for cell in line.cells],
        }

    def _take(self, entry: dict) -> None:
        trial = draw_trial(entry["seed"], entry["number"])
        if (entry["seed"], entry["fingerprint"], entry["trial"]) == (self.seed, self.fingerprint, _digest(trial)):
            self.done[trial.number] = Line(trial, tuple(Cell(**cell) for cell in entry["cells"]), entry["seconds"])


def _digest(trial: Trial) -> str:
    return hashlib.sha256(json.dumps(asdict(trial), sort_keys=True).encode()).hexdigest()[:12]


def _counts(counts: Counter) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
