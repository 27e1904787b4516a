"""Host side: a search's trials as JSON lines, written one by one, so that a search goes on where it was stopped."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from checkpoints.commands import UsageError
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
    """Lines by trial number. A file's lines of another seed, source or drawing of the trial do not count.

    path: the file, None for none. source: what computes, and which cells: commit, fingerprint, numbers of devices.
    """

    path: Path | None
    seed: int
    source: str
    done: dict[int, Line] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            for entry in _whole_lines(self.path):
                self._take(entry)

    def add(self, line: Line, verbose: bool = False) -> None:
        """Prints a trial's line and appends it to the file; an unequal or unchecked cell with how to repeat it."""
        self.done[line.trial.number] = line
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self._entry(line), sort_keys=True) + "\n")
        counts = Counter(cell.status for cell in line.cells)
        words = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        print(f"trial {line.trial.number}: {words}, {line.seconds:.0f} s", flush=True)
        for cell in line.cells:
            if verbose or failed([cell]):
                print(f"  {cell.status} {cell.check} devices={cell.devices} {cell.dtype} {cell.first} {cell.evidence}")
        if failed(line.cells):
            print(f"  repeat it: python -m experiments.prove.search --seed={self.seed} --only={line.trial.number}")
            print(f"  {json.dumps(asdict(line.trial), sort_keys=True)}", flush=True)

    def figures(self, numbers: Iterable[int]) -> dict[str, Any]:
        """Cells by status, and by check, devices and status; rows compared, and what checks exercised in all."""
        lines = [self.done[number] for number in numbers]
        cells = [cell for line in lines for cell in line.cells]
        exercised: Counter = Counter()
        for cell in cells:
            exercised.update(cell.evidence if cell.check != "reference" else {})
        return {
            "trials": len(lines),
            "seed": self.seed,
            "cells": dict(Counter(cell.status for cell in cells)),
            "by_check": dict(Counter(f"{cell.check}, devices={cell.devices}: {cell.status}" for cell in cells)),
            "rows_compared": sum(cell.rows for cell in cells if cell.check not in ("reference", "load")),
            "exercised": dict(exercised),
            "by_form": dict(Counter(line.trial.form for line in lines)),
            "by_arithmetic": dict(Counter(line.trial.dtype for line in lines)),
            "seconds": round(sum(line.seconds for line in lines)),
        }

    def digest(self, numbers: Iterable[int]) -> str:
        """SHA-256 of the trials and their cells, times left out: equal where a search is repeated."""
        entries = [{k: v for k, v in self._entry(self.done[n]).items() if k != "seconds"} for n in numbers]
        return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()

    def _entry(self, line: Line) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "number": line.trial.number,
            "trial": _digest(line.trial),
            "source": self.source,
            "seconds": round(line.seconds, 1),
            "cells": [asdict(cell) for cell in line.cells],
        }

    def _take(self, entry: dict[str, Any]) -> None:
        if (entry["seed"], entry["source"]) != (self.seed, self.source):
            return
        trial = draw_trial(entry["seed"], entry["number"])
        if entry["trial"] == _digest(trial):
            self.done[trial.number] = Line(trial, tuple(Cell(**cell) for cell in entry["cells"]), entry["seconds"])


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """Entries of a file, from which a last line without an end is cut: its writer was killed, the trial runs again."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        os.truncate(path, len(whole))
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise UsageError(f"--out={path}: no file of trials: {error}") from error


def _digest(trial: Trial) -> str:
    return hashlib.sha256(json.dumps(asdict(trial), sort_keys=True).encode()).hexdigest()[:12]
