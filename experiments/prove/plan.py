"""Host side: which cells a run of the proof is made of, and on which requests. Read next: suite.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from experiments.prove.cells import AXES, Cell, Value, make_cell
from experiments.prove.covering import pairwise, product
from experiments.prove.features import RUNNABLE, missing
from experiments.prove.streams import ORDINARY, ORIGIN, SHORT, Workload

Size = Literal["pairs", "quick", "full", "origin"]


@dataclass(frozen=True)
class ProofPlan:
    """cells: those to run, by devices. not_run: those that hold a value which nothing runs yet.

    left_out: claims that the chosen values say nothing about.
    """

    cells: tuple[Cell, ...]
    not_run: tuple[Cell, ...]
    workload: Workload
    left_out: tuple[str, ...] = ()


def make_plan(size: Size, tp: Sequence[int], seed: int) -> ProofPlan:
    """The cells of one size of run at these numbers of devices."""
    axes = {**AXES, "tp": tuple(tp)}
    if size == "quick":
        axes |= {"streams": (1, 4), "sampling": ("greedy", "seeded"), "chunk": (5, 512)}
    if size == "origin":
        axes |= {"streams": (1, 4), "sampling": ("greedy", "seeded"), "chunk": (512,)}
    runnable = {axis: tuple(v for v in values if v in RUNNABLE[axis] or axis == "tp") for axis, values in axes.items()}
    choose = product if size == "full" else pairwise
    cells = _cells(choose(runnable))
    return ProofPlan(
        cells=tuple(sorted(cells, key=lambda cell: (cell.tp, cell.place))),
        not_run=tuple(cell for cell in _cells(choose(axes)) if missing(cell)),
        workload=replace({"quick": SHORT, "origin": ORIGIN}.get(size, ORDINARY), seed=seed),
        left_out=() if max(tp) > 1 else ("ranks",),
    )


def _cells(rows: Sequence[Mapping[str, Value]]) -> list[Cell]:
    return [make_cell(row) for row in rows]
