"""Host side: drafts between rounds: which lanes draft, what they hold, what of it is tested. No device, no clock.

The decisions are a Drafter's; here they meet lanes and plans. Whatever is decided, replies are the same.
Read next: drafting/streams.py.
"""

import logging
from collections.abc import Sequence

import numpy as np

from fnx_jax.engine.drafting.policy import DraftPolicy
from fnx_jax.engine.drafting.settings import DraftSettings
from fnx_jax.engine.drafting.streams import Drafter, Outcome, Stream, Window
from fnx_jax.engine.ending import end_ids
from fnx_jax.engine.lane import Lane
from fnx_jax.engine.plan import Drafts, Segment
from fnx_jax.engine.request import Emission
from fnx_jax.engine.steps import DraftOutput, DraftPlan, DraftRow, Steps

logger = logging.getLogger(__name__)


def policy_for(steps: Steps, settings: DraftSettings | None = None) -> DraftPolicy | None:
    """A policy that has learnt nothing yet; None where there is no draft head."""
    return DraftPolicy(settings or DraftSettings(), steps.draft_depth) if steps.draft_depth else None


class LaneDrafts:
    """The drafts of all lanes of one scheduler.

    depth: drafts of a chain at most, 0 without a draft head. row_tile: rows of a tile.
    """

    def __init__(self, drafter: Drafter, depth: int, row_tile: int):
        self._drafter, self._depth, self._row_tile = drafter, depth, row_tile
        self._windows: dict[int, Window] = {}
        self._lost = 0

    def propose(self, lanes: Sequence[Lane], rows: int) -> tuple[list[Lane], Drafts]:
        """Chooses what follows each lane's pending token in the next round, of `rows` rows at most.

        Returns: the lanes in the order of their rows, and what proposes.
        """
        windows = self._drafter.windows([_stream(lane) for lane in lanes], rows, self._row_tile)
        self._windows = {window.order: window for window in windows}
        by_order = {lane.order: lane for lane in lanes}
        return [by_order[window.order] for window in windows], lambda lane: self._windows[lane.order].drafts

    def note_round(self, segments: Sequence[Segment], emissions: Sequence[Emission], seconds: float) -> None:
        """Takes a concluded round: its rows, what its replies gained, its wall time."""
        gained = {emission.request_id: emission.tokens for emission in emissions}
        tested = [segment.lane for segment in segments if not segment.prompt]
        outcomes = [Outcome(self._windows[lane.order], gained.get(lane.request.id, ())) for lane in tested]
        prompt_rows = sum(len(segment.tokens) for segment in segments if segment.prompt)
        self._windows = {}
        self._drafter.note_round(outcomes, 1000 * seconds, prompt_rows)

    def plan(self, lanes: Sequence[Lane], pages_LP: np.ndarray) -> DraftPlan | None:
        """Asks for the drafts of the lanes that the next round will decode; None where none is wanted."""
        depths = self._drafter.depths([_stream(lane) for lane in lanes])
        wanted = [(lane, self._fitting(lane, depth)) for lane, depth in zip(lanes, depths, strict=True)]
        drafting = [(lane, depth) for lane, depth in wanted if depth > 0]
        if not drafting:
            return None
        rows = tuple(
            DraftRow(lane.index, lane.filled - 1, lane.tokens[-1], lane.draw(row), depth)
            for row, (lane, depth) in enumerate(drafting)
        )
        return DraftPlan(rows, pages_LP, self._drafter.confidence)

    def hold(self, lanes: Sequence[Lane], plan: DraftPlan, output: DraftOutput, seconds: float) -> None:
        """Gives the lanes what was drafted for them. Raises ValueError where the output does not answer the plan."""
        if len(output.tokens) != len(plan.rows) or len(output.chances) != len(plan.rows):
            raise ValueError(f"draft: {len(output.tokens)} chains, {len(plan.rows)} were planned")
        by_index = {lane.index: lane for lane in lanes}
        for row, tokens, chances in zip(plan.rows, output.tokens, output.chances, strict=True):
            lane = by_index[row.lane]
            kept = _until_end(lane, tokens)
            lane.hold(tokens[:kept], chances[:kept])
        self._drafter.note_draft(len(plan.rows), max(map(len, output.tokens)), 1000 * seconds)

    def lose(self, plan: DraftPlan, error: Exception, seconds: float) -> None:
        """A call for drafts failed: it has cost its time. Told of ever more rarely."""
        self._lost += 1
        if self._lost & (self._lost - 1) == 0:
            logger.warning("drafts were lost, %d times so far: %s: %s", self._lost, type(error).__name__, error)
        self._drafter.note_draft(len(plan.rows), max(row.depth for row in plan.rows), 1000 * seconds)

    def forget(self, lane: Lane) -> None:
        """A lane's reply has ended."""
        self._windows.pop(lane.order, None)
        self._drafter.forget(lane.order)

    def _fitting(self, lane: Lane, depth: int) -> int:
        """No deeper than the head, a window or the rest of the reply; a draft as its last token saves no round.

        A chain begins behind the newest kept row, which is not there yet where tokens were dictated.
        """
        if not lane.request.sampling.draft or len(lane.pending) > 1:
            return 0
        return min(depth, self._depth, self._row_tile - 1, lane.room - 1)


def _stream(lane: Lane) -> Stream:
    forced = lane.pending[1:]
    return Stream(
        order=lane.order,
        tokens=lane.tokens[: lane.filled + 1] if forced else lane.tokens,
        room=lane.room + len(forced),
        drafts=lane.request.sampling.draft,
        held=lane.held,
        chances=lane.chances,
        forced=forced,
    )


def _until_end(lane: Lane, tokens: Sequence[int]) -> int:
    """How many drafts there are up to the first that would end the reply."""
    ends = end_ids(lane.request.sampling)
    return next((place + 1 for place, token in enumerate(tokens) if token in ends), len(tokens))
