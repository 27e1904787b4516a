"""Host side: which rows make the next round, and the arrays that describe them to the device.

Decoding lanes come first, each with a window: its pending tokens and, where something proposes them, drafts under
test. Prompt rows of filling lanes take what is left. Read next: conclude.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from fnx_jax.engine.lane import Lane
from fnx_jax.engine.steps import Draw, RoundPlan, Score, Steps

Drafts = Callable[[Lane], Sequence[int]]
"""Proposes the tokens that may follow a lane's pending one; whatever it proposes, the reply is the same."""


@dataclass(frozen=True)
class Segment:
    """Rows of one lane in one round: contiguous, in ascending position.

    start: position of the first row. tokens: one a row. prompt: prompt rows, else a window.
    drafts: how many of the last rows are under test. drawn: how many of the last rows are drawn.
    scored: how many of the first rows are scored. open: how many of the last rows, though certain, are run as if they
    were under test, so that the state before them can still be kept after the round.
    """

    lane: Lane
    start: int
    tokens: tuple[int, ...]
    prompt: bool
    drafts: int
    drawn: int
    scored: int
    open: int = 0


@dataclass(frozen=True)
class Planned:
    """A plan, and whose rows it holds, in the order of the rows."""

    plan: RoundPlan
    segments: tuple[Segment, ...]


def windows(lanes: Sequence[Lane], rows: int, row_tile: int, drafts: Drafts | None) -> list[Segment]:
    """Builds a window for each lane in at most `rows` rows, of which every lane is sure of one.

    A window is cut where its tile ends, so that none crosses a tile border. Drafts follow a lone pending token only.
    """
    segments, used = [], 0
    for after, lane in zip(reversed(range(len(lanes))), lanes, strict=True):
        room = min(row_tile - used % row_tile, rows - used - after)
        pending = lane.pending
        proposed = ()
        if drafts is not None and lane.request.sampling.draft and len(pending) == 1:
            proposed = tuple(drafts(lane)[: min(room, lane.room) - 1])
        tokens = (*pending, *proposed)[:room]
        drawn = 1 + len(proposed) if len(pending) <= room else 0
        segments.append(Segment(lane, lane.filled, tokens, False, drafts=len(proposed), drawn=drawn, scored=0))
        used += len(tokens)
    return segments


def prompt_order(lanes: Sequence[Lane], passes: int) -> list[Lane]:
    """Orders filling lanes: those passed over `passes` times or more, the longest first, then by admission."""
    return sorted(lanes, key=lambda lane: (-lane.passed if lane.passed >= passes else 0, lane.order))


def prompt_pieces(ordered: Sequence[Lane], rows: int, first: int, row_tile: int) -> list[Segment]:
    """Deals at most `rows` prompt rows to the lanes in order, each as many as it needs to its next mark.

    A mark before a prompt's last row ends no piece where that row can be left open: behind another one in its tile.
    first: the round's rows before these.
    """
    segments = []
    for lane in ordered:
        before_last = lane.prompt_length - 1
        end = lane.prompt_end(rows, passed=before_last)
        opens = end == lane.prompt_length and lane.filled < before_last in lane.marks
        if opens and (first + before_last - lane.filled) % row_tile == 0:
            end, opens = before_last, False
        if end > lane.filled:
            segments.append(_prompt_piece(lane, end, int(opens)))
            rows -= end - lane.filled
            first += end - lane.filled
    return segments


def _prompt_piece(lane: Lane, end: int, open_rows: int) -> Segment:
    last = end == lane.prompt_length
    rows = end - lane.filled
    return Segment(
        lane,
        lane.filled,
        tuple(lane.tokens[lane.filled : end]),
        True,
        drafts=0,
        drawn=1 if last and lane.limit else 0,
        scored=0 if lane.request.sampling.prompt_logprobs is None else rows - last,
        open=open_rows,
    )


def assemble(segments: Sequence[Segment], pages_LP: Int[np.ndarray, "L P"], steps: Steps) -> Planned:
    """Writes the segments' rows one after the other as a RoundPlan. Every array is new."""
    first = np.cumsum([0, *(len(segment.tokens) for segment in segments)])
    plan = RoundPlan(
        token_B=np.array([token for segment in segments for token in segment.tokens], np.int32),
        lane_B=np.repeat([segment.lane.index for segment in segments], np.diff(first)).astype(np.int32),
        position_B=np.concatenate(
            [segment.start + np.arange(len(segment.tokens)) for segment in segments], dtype=np.int32
        ),
        speculative_B=np.concatenate([_speculative(segment) for segment in segments]),
        history_BN=np.concatenate([_history(segment, steps.history) for segment in segments]),
        pages_LP=pages_LP,
        draws=tuple(d for segment, row in zip(segments, first[:-1], strict=True) for d in _draws(segment, int(row))),
        scores=tuple(s for segment, row in zip(segments, first[:-1], strict=True) for s in _scores(segment, int(row))),
    )
    return Planned(plan, tuple(segments))


def _speculative(segment: Segment) -> np.ndarray:
    return np.arange(len(segment.tokens)) >= len(segment.tokens) - segment.drafts - segment.open


def _history(segment: Segment, depth: int) -> np.ndarray:
    """The `depth` tokens before each row, newest first; -1 before the start."""
    before = segment.lane.tokens[max(0, segment.start - depth) : segment.start]
    line = np.array([-1] * (depth - len(before)) + before + list(segment.tokens), np.int32)
    return line[np.arange(len(segment.tokens))[:, None] + np.arange(depth)[::-1]]


def _draws(segment: Segment, first: int) -> list[Draw]:
    skipped = len(segment.tokens) - segment.drawn
    drafts = segment.tokens[skipped + 1 :]
    return [segment.lane.draw(first + skipped + row, drafts[:row]) for row in range(segment.drawn)]


def _scores(segment: Segment, first: int) -> list[Score]:
    lane, top = segment.lane, segment.lane.request.sampling.prompt_logprobs or 0
    return [Score(first + row, lane.tokens[segment.start + row + 1], top) for row in range(segment.scored)]
