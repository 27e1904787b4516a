"""Host side: what the tiles of a round leave on the device, and what the engine is told of it. Read next: rounds.py."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fnx_jax.engine.request import TokenLogprobs
from fnx_jax.engine.steps import RoundOutput, RoundPlan
from fnx_jax.lanes.tiles import Tile


@dataclass
class TileResult:
    """Device arrays of one tile that the round will read, None where nothing asks for them.

    token: int32 [B], drawn ids. drawn_finite, finite: bool [B], of draws and of scores, as in RoundOutput.
    drawn_logprobs, score_logprobs: of the drawn and of the scored ids, as from row_logprobs.
    """

    tile: Tile
    token: jax.Array | None = None
    drawn_finite: jax.Array | None = None
    finite: jax.Array | None = None
    drawn_logprobs: tuple[jax.Array, ...] | None = None
    score_logprobs: tuple[jax.Array, ...] | None = None


def collect(fetched: list[dict[str, Any]], results: list[TileResult], plan: RoundPlan) -> RoundOutput:
    """Puts the results of all tiles into the order of the plan. fetched: each one's arrays on the host, by field."""
    drawn: dict[int, tuple[int, bool, TokenLogprobs | None]] = {}
    scored: dict[int, tuple[TokenLogprobs, bool]] = {}
    for result, values in zip(results, fetched, strict=True):
        for draw in result.tile.draws:
            b = result.tile.place(draw.row)
            token = int(values["token"][b])
            report = None if draw.logprobs is None else _report(values["drawn_logprobs"], b, token, draw.logprobs)
            drawn[draw.row] = (token, bool(values["drawn_finite"][b]), report)
        for score in result.tile.scores:
            b = result.tile.place(score.row)
            report = _report(values["score_logprobs"], b, score.target, score.top)
            scored[score.row] = (report, bool(values["finite"][b]))
    draws = [drawn[draw.row] for draw in plan.draws]
    scores = [scored[score.row] for score in plan.scores]
    return RoundOutput(
        tokens=tuple(token for token, _, _ in draws),
        finite=tuple(finite for _, finite, _ in draws),
        draw_logprobs=tuple(report for _, _, report in draws),
        score_logprobs=tuple(report for report, _ in scores),
        score_finite=tuple(finite for _, finite in scores),
    )


def _report(values: tuple[np.ndarray, ...], b: int, token: int, top: int) -> TokenLogprobs:
    logprob_B, ids_BK, logprobs_BK = values
    likeliest = tuple((int(ids_BK[b, k]), float(logprobs_BK[b, k])) for k in range(min(top, ids_BK.shape[1])))
    return TokenLogprobs(token=token, logprob=float(logprob_B[b]), top=likeliest)
