"""Host side: runs the cells of a plan, each against the reference of its sampling. Read next: claims.py."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from experiments.prove.cells import Cell
from experiments.prove.claims import Result
from experiments.prove.compare import Difference, differences, smallest_margin
from experiments.prove.evidence import evidence, unexercised
from experiments.prove.locate import first_place, trace
from experiments.prove.past import earlier, replies_alone, resumable
from experiments.prove.plan import ProofPlan
from experiments.prove.proposals import proposals
from experiments.prove.record import Past, Recording, no_past, record
from experiments.prove.streams import Workload
from fnx_jax.engine.drafting.streams import Drafter
from fnx_jax.engine.fixed_depth import FixedDepth
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.plan import Drafts
from fnx_jax.engine.request import Request
from fnx_jax.model import Model

DEPTH = 3
"""Drafts of the draft head, each round."""
NEVER = 1 << 30
LOCATED_MOST = 3
"""Unequal cells whose first layer is looked for; each takes both sides again, layer by layer."""


@dataclass
class Suite:
    """One run. load: a model on so many devices; only the newest is held. progress: told what begins.

    references: recordings by sampling.
    """

    load: Callable[[int], Model]
    workload: Workload
    progress: Callable[[str], None] = lambda what: None
    references: dict[str, Recording] = field(default_factory=dict)
    _model: tuple[int, Model] | None = None

    def run(self, plan: ProofPlan) -> list[Result]:
        """Every cell's result, in the plan's order; then the first places of the differences."""
        for sampling in dict.fromkeys(cell.sampling for cell in plan.cells):
            self.progress(f"reference, {sampling}")
            self.references[sampling] = self.record(Cell(sampling=sampling))
        results = []
        for i, cell in enumerate(plan.cells):
            self.progress(f"cell {i + 1} of {len(plan.cells)}: {cell}")
            results.append(self.result(cell))
        return self._located(results)

    def model(self, devices: int) -> Model:
        """The model on so many devices; another one is let go first."""
        if self._model is None or self._model[0] != devices:
            self._model = None
            self._model = devices, self.load(devices)
        return self._model[1]

    def record(self, cell: Cell) -> Recording:
        """Serves the workload as the cell says."""
        steps = self.model(cell.tp).steps
        config, drafts = engine_config(cell), self.drafts(cell)
        return record(steps, self.requests(cell), config, drafts, cell.streams, drafter(cell), past(cell))

    def result(self, cell: Cell) -> Result:
        """Runs a cell and compares it; an error of the run is its result."""
        begin_s = time.perf_counter()
        try:
            found = self.record(cell)
        except (RuntimeError, FloatingPointError) as error:
            return Result(cell, error=f"{type(error).__name__}: {error}", seconds=time.perf_counter() - begin_s)
        failed = [
            f"{name}: {reply.finish}" for name, reply in found.replies.items() if reply.finish.startswith("error")
        ]
        held = evidence(found, self.model(cell.tp).params)
        return Result(
            cell,
            differences=tuple(differences(self.reference(cell), found)),
            unexercised=tuple(unexercised(cell, held, max(self.workload.prompts))),
            margin=smallest_margin(found),
            seconds=time.perf_counter() - begin_s,
            evidence=held,
            error=failed[0] if failed else None,
        )

    def requests(self, cell: Cell) -> list[Request]:
        """The cell's requests."""
        valid = np.asarray(self.model(cell.tp).steps.device.valid_V)
        requests = self.workload.requests(valid, cell.sampling)
        return requests if cell.start == "fresh" else resumable(requests)

    def reference(self, cell: Cell) -> Recording:
        """What the cell is compared with; of a resumed prompt there are no rows."""
        whole = self.references[cell.sampling]
        return whole if cell.start == "fresh" else replies_alone(whole)

    def drafts(self, cell: Cell) -> Drafts | None:
        """What proposes drafts in the cell, in place of the draft head."""
        if cell.drafts != "proposed":
            return None
        replies = {name: reply.tokens for name, reply in self.references[cell.sampling].replies.items()}
        return proposals(replies, self.model(cell.tp).steps.vocabulary)

    def _located(self, results: list[Result]) -> list[Result]:
        unequal = [result for result in results if result.differences][:LOCATED_MOST]
        places = {id(result): self._place(result.cell, result.differences[0]) for result in unequal}
        return [_with_place(result, places.get(id(result))) for result in results]

    def _place(self, cell: Cell, difference: Difference) -> str | None:
        """The first layer that differs, from both sides run again."""
        if difference.what != "logits":
            return None
        self.progress(f"looking for the first layer of {difference} in {cell}")
        sides = []
        for side in (cell.reference(), cell):
            steps = self.model(side.tp).steps
            requests, config = self.requests(side), engine_config(side)
            drafts = self.drafts(side)
            sides.append(trace(steps, requests, config, drafts, side.streams, difference, drafter(side), past(side)))
        return first_place(*sides)


def drafter(cell: Cell) -> Drafter | None:
    """What lets the draft head draft in the cell: in every round, for every lane."""
    return FixedDepth(DEPTH) if cell.drafts == "head" else None


def past(cell: Cell) -> Past:
    """What an engine has served before each group of the cell's requests."""
    return earlier if cell.start == "resumed" else no_past


def engine_config(cell: Cell) -> EngineConfig:
    """Rounds as the cell says; where nothing is resumed, no prompt is long enough to be kept."""
    apart = 1 if cell.start == "resumed" else NEVER
    return EngineConfig(prefill_chunk=cell.chunk, stall_rows=cell.chunk, prompt_cache_min_tokens=apart)


def _with_place(result: Result, place: str | None) -> Result:
    if place is None:
        return result
    first, *rest = result.differences
    return replace(result, differences=(replace(first, place=place), *rest))
