"""Host side: recordings of every row that rounds run, prompt rows and rejected drafts included, by stream.

A row at position 0 starts a stream in its lane; a row run again at a position stands for what it replaces, as the row
after a rejected draft does. Read next: walk.py, checks.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from experiments.prove.record import Recording, Reply, Row, describe_row, serve
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.plan import Drafts
from fnx_jax.engine.request import Request
from fnx_jax.families.rows import Rows
from fnx_jax.lanes.programs import Programs
from fnx_jax.lanes.rounds import DeviceSteps


@dataclass
class Stream:
    """Rows of one stream so far: the token fed at each position, and the logits that it led to."""

    tokens: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def put(self, position: int, token: int, row: Row) -> None:
        """Takes the row at a position; whatever stood there or behind it is gone."""
        del self.tokens[position:], self.rows[position:]
        self.tokens.append(token)
        self.rows.append(row)

    def reply(self, prompt: int, tokens: tuple[int, ...], finish: str) -> Reply:
        """The stream as a reply's recording: rows by the position of the token that they decide."""
        kept = self.rows[: prompt + len(tokens) - 1]
        return Reply(prompt=prompt, tokens=tokens, finish=finish, rows=dict(enumerate(kept, start=1)))


@dataclass
class RowRecorder:
    """Takes the place of the row program. streams: in the order of their first rows."""

    programs: Programs
    streams: list[Stream] = field(default_factory=list)
    lanes: dict[int, Stream] = field(default_factory=dict)

    def rows(self, params: Any, state: Any, rows: Rows, pages_LP: Any) -> tuple[Any, jax.Array]:
        """Runs a tile and keeps its live rows."""
        state, streams_BN = self.programs.rows(params, state, rows, pages_LP)
        logits_BV = np.asarray(self.programs.whole(self.programs.logits(params, streams_BN)))
        for b in np.flatnonzero(rows.places.live_B):
            lane, position = int(rows.places.lane_B[b]), int(rows.places.position_B[b])
            if position == 0:
                self.lanes[lane] = Stream()
                self.streams.append(self.lanes[lane])
            self.lanes[lane].put(position, int(rows.token_B[b]), describe_row(logits_BV[b]))
        return state, streams_BN


@contextmanager
def recorded_rows(steps: DeviceSteps) -> Iterator[RowRecorder]:
    """Records every row that the steps run inside."""
    whole = steps.programs
    recorder = RowRecorder(whole)
    steps.programs = replace(whole, rows=recorder.rows)
    try:
        yield recorder
    finally:
        steps.programs = whole


def record_rows(
    steps: DeviceSteps, requests: Sequence[Request], config: EngineConfig | None = None, drafts: Drafts | None = None
) -> Recording:
    """Serves requests, whose first tokens differ, together and records every row. Raises: as record.record."""
    with recorded_rows(steps) as recorder:
        emissions, rounds = serve(steps, requests, config, drafts)
    by_first = {stream.tokens[0]: stream for stream in recorder.streams}
    replies = {}
    for request in requests:
        finish = emissions[request.id][-1].finish
        words = "" if finish is None else f"{finish.reason} {finish.error or ''}".strip()
        tokens = tuple(token for emission in emissions[request.id] for token in emission.tokens)
        replies[request.id] = by_first[request.prompt[0]].reply(len(request.prompt), tokens, words)
    return Recording(replies, tuple(rounds))
