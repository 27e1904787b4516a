"""Host side: what rounds and draft calls cost on machines that are described or were recorded, and noisy clocks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fnx_jax.engine.drafting.costs import Costs

ROW_TILE = 16


class Machine(Protocol):
    """True milliseconds. rows: of a round, lanes included. steps: drafts of the longest chain."""

    def round_ms(self, lanes: int, rows: int) -> float: ...

    def head_ms(self, lanes: int, steps: int) -> float: ...


@dataclass(frozen=True)
class Described:
    """A round: base_ms, tile_ms a tile, row_ms a row, expert_ms for each distinct expert that the rows pick.

    experts, active: of a layer, and those that a row picks of them. head_base_ms, head_step_ms: of a draft call.
    """

    base_ms: float
    row_ms: float
    head_base_ms: float
    head_step_ms: float
    tile_ms: float = 0.0
    expert_ms: float = 0.0
    experts: int = 512
    active: int = 10

    def round_ms(self, lanes: int, rows: int) -> float:
        """True milliseconds of a round."""
        distinct = self.experts * (1 - (1 - self.active / self.experts) ** rows)
        tiles = -(-rows // ROW_TILE)
        return self.base_ms + self.tile_ms * tiles + self.row_ms * rows + self.expert_ms * distinct

    def head_ms(self, lanes: int, steps: int) -> float:
        """True milliseconds of a draft call."""
        return self.head_base_ms + self.head_step_ms * steps


class Recorded:
    """A machine from a table of times that a server's policy has learnt (see Costs.table)."""

    def __init__(self, table: Mapping[str, Mapping]):
        self._costs = Costs.of(table, rate=1.0)
        if not self._costs.known:
            raise ValueError("costs: no round in the table")

    def round_ms(self, lanes: int, rows: int) -> float:
        """Milliseconds of a round, between those of the table where it has none."""
        return self._costs.round_ms(lanes, rows)

    def head_ms(self, lanes: int, steps: int) -> float:
        """Milliseconds of a draft call."""
        return self._costs.head_ms(lanes, steps)


@dataclass(frozen=True)
class Noise:
    """How clocks err: a normal factor, and now and then a spike."""

    jitter: float = 0.1
    spike_chance: float = 0.01
    spike: float = 5.0


class Clock:
    """Reads times as a real clock would."""

    def __init__(self, noise: Noise, rng: np.random.Generator):
        self._noise, self._rng = noise, rng

    def read(self, true_ms: float) -> float:
        """A measured time, never less than half the true one."""
        factor = max(0.5, 1 + self._noise.jitter * self._rng.standard_normal())
        return true_ms * factor * (self._noise.spike if self._rng.random() < self._noise.spike_chance else 1.0)
