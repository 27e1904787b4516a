"""Host side: what rounds really computed: the raw logits of every row, by the stream that the row belongs to.

A row at position 0 starts a stream in its lane; a row run again at a position stands for what it replaces, as a
rejected draft is replaced. Read next: checks.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from fnx_jax.families.rows import Rows
from fnx_jax.lanes.programs import Programs
from fnx_jax.lanes.rounds import DeviceSteps


@dataclass
class Stream:
    """Rows of one stream so far: token and raw logits of each position."""

    tokens: list[int] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)

    def put(self, position: int, token: int, logits_V: np.ndarray) -> None:
        """Takes the row at a position; whatever stood there or behind it is gone."""
        del self.tokens[position:], self.logits[position:]
        self.tokens.append(token)
        self.logits.append(logits_V)

    def rows(self, count: int) -> tuple[Int[np.ndarray, " T"], Float[np.ndarray, "T V"]]:
        """Tokens and logits of the first `count` rows, or of as many as there are."""
        return np.array(self.tokens[:count]), np.array(self.logits[:count])


@dataclass
class Recorder:
    """Takes the place of the row program. streams: in the order of their first rows."""

    programs: Programs
    streams: list[Stream] = field(default_factory=list)
    lanes: dict[int, Stream] = field(default_factory=dict)

    def rows(self, params: Any, state: Any, rows: Rows, pages_LP: Any) -> tuple[Any, jax.Array]:
        """Runs a tile and keeps the logits of its live rows."""
        state, streams_BN = self.programs.rows(params, state, rows, pages_LP)
        logits_BV = np.asarray(self.programs.logits(params, streams_BN))
        for b in np.flatnonzero(rows.places.live_B):
            lane, position = int(rows.places.lane_B[b]), int(rows.places.position_B[b])
            if position == 0:
                self.lanes[lane] = Stream()
                self.streams.append(self.lanes[lane])
            self.lanes[lane].put(position, int(rows.token_B[b]), logits_BV[b])
        return state, streams_BN


@contextmanager
def recorded(steps: DeviceSteps) -> Iterator[Recorder]:
    """Records every row that the steps run inside."""
    whole = steps.programs
    recorder = Recorder(whole)
    steps.programs = replace(whole, rows=recorder.rows)
    try:
        yield recorder
    finally:
        steps.programs = whole
