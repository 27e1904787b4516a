"""Host side: given tokens instead of drawn ones, through the row programs of serving.

Uses lanes from 0 on and their pages, so the rounds must be at rest.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from fnx_jax.engine.steps import RoundPlan, Score
from fnx_jax.families.history import token_history
from fnx_jax.lanes.rounds import DeviceSteps
from fnx_jax.lanes.tiles import cut


def logits(steps: DeviceSteps, token_T: Int[np.ndarray, " T"]) -> Float[np.ndarray, "T V"]:
    """Raw logits after every token of one sequence. float32."""
    out = np.empty((len(token_T), steps.vocabulary), np.float32)
    for start in range(0, len(token_T), steps.row_tile):
        stop = min(start + steps.row_tile, len(token_T))
        out[start:stop] = piece_logits(steps, token_T, start, stop)
    return out


def piece_logits(
    steps: DeviceSteps,
    token_T: Int[np.ndarray, " T"],
    start: int,
    stop: int,
    company: Int[np.ndarray, " T"] | None = None,
) -> Float[np.ndarray, "B V"]:
    """Logits of rows [start, stop) of the sequence in lane 0, whose earlier rows have run: at most a tile of them.

    company: rows of it at the same positions fill up the first tile, in lane 1, where there are lanes and room.
    """
    pieces = [(0, token_T, start, stop)]
    if company is not None and steps.lanes > 1 and stop - start < steps.row_tile:
        pieces.append((1, company, start, min(stop, start + steps.row_tile - (stop - start))))
    plan = _plan(steps, pieces)
    embeddings = steps.device.ngrams.embeddings(plan.token_B, plan.history_BN)
    (tile,) = cut(plan)
    streams = steps.run_tile(plan, tile, embeddings)
    slices = steps.programs.logits(steps.device.params, streams)
    return np.asarray(steps.programs.whole(slices))[: stop - start]


def score(
    steps: DeviceSteps, token_BT: Int[np.ndarray, "B T"], length_B: Int[np.ndarray, " B"]
) -> Float[np.ndarray, "B T"]:
    """log p(token t | tokens before it) of every sequence; 0.0 at t = 0 and from each sequence's length on."""
    out = np.zeros(token_BT.shape, np.float32)
    for first in range(0, len(token_BT), steps.lanes):
        group = range(first, min(first + steps.lanes, len(token_BT)))
        for start in range(0, int(max(length_B[group], default=0)), steps.row_tile):
            pieces = [
                (b - first, token_BT[b, : length_B[b]], start, min(start + steps.row_tile, int(length_B[b])))
                for b in group
                if start < length_B[b]
            ]
            _score_pieces(steps, pieces, out[first:])
    return out


_Piece = tuple[int, np.ndarray, int, int]
"""Lane, its whole sequence, first and past-the-last position of the rows to run."""


def _score_pieces(steps: DeviceSteps, pieces: Sequence[_Piece], out_LT: np.ndarray) -> None:
    scores, places, row = [], [], 0
    for lane, token_T, start, stop in pieces:
        for position in range(start, min(stop, len(token_T) - 1)):
            scores.append(Score(row=row + position - start, target=int(token_T[position + 1])))
            places.append((lane, position + 1))
        row += stop - start
    output = steps.round(_plan(steps, pieces, tuple(scores)))
    for (lane, position), report in zip(places, output.score_logprobs, strict=True):
        out_LT[lane, position] = report.logprob


def _history(token_T: np.ndarray, start: int, stop: int, back: int) -> np.ndarray:
    first = max(0, start - back)
    return token_history(token_T[first:stop], back)[start - first :]


def _plan(steps: DeviceSteps, pieces: Sequence[_Piece], scores: tuple[Score, ...] = ()) -> RoundPlan:
    steps.owner = None  # the pages that an engine may have kept are written
    per_lane = -(-steps.context // steps.page)
    pages = np.arange(steps.lanes * per_lane, dtype=np.int32).reshape(steps.lanes, per_lane)
    positions = np.concatenate([np.arange(start, stop, dtype=np.int32) for _, _, start, stop in pieces])
    return RoundPlan(
        token_B=np.concatenate([token_T[start:stop] for _, token_T, start, stop in pieces]).astype(np.int32),
        lane_B=np.concatenate([np.full(stop - start, lane, np.int32) for lane, _, start, stop in pieces]),
        position_B=positions,
        speculative_B=np.zeros(len(positions), bool),
        history_BN=np.concatenate(
            [_history(token_T, start, stop, steps.history) for _, token_T, start, stop in pieces]
        ),
        pages_LP=pages,
        scores=scores,
    )
