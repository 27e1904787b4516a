"""Host side: traces that nobody chose: machines of any shape, drafts of any luck, drawn from a seed."""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from experiments.draft_policy.scenarios import PLAIN_LEAST, Scenario
from experiments.draft_policy.simulate import Workload
from experiments.draft_policy.text import DEPTH, Text, edited, forms

ROWS = 8 * (DEPTH + 1)
NEVER = 1_000_000
CREDULOUS = {"prior": (1.0,), "prior_rounds": 1e6, "lane_trust": 1e6, "copy_trust": 1e6}
"""Settings of a policy that learns nothing of drafts and takes every one for sure."""
CREDULOUS_LEAST = 0.96
"""Its bound beside plain rounds: as it rarely runs any, what it errs in their time comes on top of its account."""


@dataclass(frozen=True)
class Jagged:
    """A machine by tables: milliseconds of a round by its rows, of a draft call by its steps. lane_ms: of each lane."""

    rounds: tuple[float, ...]
    heads: tuple[float, ...]
    lane_ms: float

    def round_ms(self, lanes: int, rows: int) -> float:
        """True milliseconds of a round."""
        return self.rounds[rows] + self.lane_ms * lanes

    def head_ms(self, lanes: int, steps: int) -> float:
        """True milliseconds of a draft call."""
        return self.heads[steps] + 0.1 * self.lane_ms * lanes


def adversary(seed: int, plain_least: float = PLAIN_LEAST) -> Scenario:
    """A scenario of a seed. Its text is never taken to be stationary, so that plain rounds are its only bound."""
    rng = np.random.default_rng((seed, 7))
    base = rng.uniform(2, 40)
    # Most rows add little or nothing, some a step as large as a plain round.
    row_ms = base * rng.uniform(0, 0.8) * rng.uniform(0, 1, ROWS) * (rng.random(ROWS) < rng.uniform(0.1, 1))
    row_ms += base * rng.uniform(0, 1, ROWS) * (rng.random(ROWS) < rng.choice([0.0, 0.05]))
    step_ms = base * rng.uniform(0.01, 0.15) * rng.uniform(0.5, 1.5, DEPTH)
    machine = Jagged(
        tuple(accumulate(row_ms.tolist(), initial=base)),
        tuple(accumulate(step_ms.tolist(), initial=base * rng.uniform(0, 0.1))),
        base * rng.uniform(0, 0.2),
    )
    text = Text(
        _landing(rng),
        spread=rng.uniform(0, 0.5),
        boast=rng.choice([0.3, 1.0, 3.0]),
        period=int(rng.choice([12, 40, 150, 500, NEVER])),
        other=_landing(rng),
        words=(None, None, None, edited, forms)[rng.integers(5)],
    )
    workload = Workload(int(rng.choice([1, 2, 3, 4, 6, 8])), text, machine, int(rng.choice([30, 64, 300, NEVER])))
    return Scenario(f"adversary {seed}", workload, offloaded=bool(rng.random() < 0.5), plain_least=plain_least)


def _landing(rng: np.random.Generator) -> tuple[float, ...]:
    return tuple(rng.uniform(0, rng.uniform(0.2, 1), rng.integers(1, 5)).tolist())
