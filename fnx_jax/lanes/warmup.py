"""Host side: compiles every program of serving before the first request, by running each once.

The rounds here touch lane 0 and its first page, which any request overwrites before it reads them.
"""

from collections.abc import Callable

import jax
import numpy as np

from fnx_jax.engine.steps import DraftPlan, DraftRow, Draw, RoundPlan, Score
from fnx_jax.lanes.rounds import DeviceSteps
from fnx_jax.lanes.tiles import Block


def warm_up(steps: DeviceSteps, progress: Callable[[str], None] = lambda what: None) -> None:
    """Runs each program once; afterwards no request compiles anything. The rounds must be at rest."""
    steps.owner = None  # what an engine may have kept is written over
    draw, score = Draw(row=0, position=1, seed=1, logprobs=0), Score(row=0, target=0)
    for height in steps.heights:
        progress(f"{height} rows, head and draws")
        steps.round(plan := _plan(steps, draw, (score,), rows=height))
        if steps.programs.owes(steps.row_tile):
            steps.owed.add(plan, Block(0, height, height, ()))
            steps.settle()
    progress("adjusted draws")
    steps.round(_plan(steps, Draw(row=0, position=1, seed=1, bias_V=np.zeros(steps.vocabulary, np.float32))))
    if steps.draft_depth:
        progress("drafts")
        for bias_V in (None, np.zeros(steps.vocabulary, np.float32)):
            steps.draft(_draft_plan(steps, Draw(row=0, position=2, seed=1, bias_V=bias_V)))
    progress("commit")
    steps.commit(np.zeros(steps.lanes, np.int32))
    if steps.slots:
        progress("kept states")
        steps.keep(0, 1, 0)
        steps.restore(0, 0)
        steps.copy_page(0, 0)
        if jax.process_count() == 1:  # states of several processes stay on the devices
            steps.refill(steps.spill(0, (0,)), 0, (0,))


def _draft_plan(steps: DeviceSteps, draw: Draw) -> DraftPlan:
    """One chain of lane 0, after its row 0: a first step and one that follows another."""
    row = DraftRow(lane=0, position=0, token=0, draw=draw, depth=min(2, steps.draft_depth))
    return DraftPlan((row,), _pages(steps))


def _pages(steps: DeviceSteps) -> np.ndarray:
    pages = np.full((steps.lanes, -(-steps.context // steps.page)), -1, np.int32)
    pages[0, 0] = 0
    return pages


def _plan(steps: DeviceSteps, draw: Draw, scores: tuple[Score, ...] = (), rows: int = 1) -> RoundPlan:
    """Rows of lane 0 from position 0 on, of which those of the first page are stored."""
    return RoundPlan(
        token_B=np.zeros(rows, np.int32),
        lane_B=np.zeros(rows, np.int32),
        position_B=np.arange(rows, dtype=np.int32),
        speculative_B=np.zeros(rows, bool),
        history_BN=np.full((rows, steps.history), -1, np.int32),
        pages_LP=_pages(steps),
        draws=(draw,),
        scores=scores,
    )
