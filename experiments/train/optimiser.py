"""Traced: how parameters move: AdamW for matrices, Adam for vectors, Adagrad for n-grams. Read next: steps.py."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import jax
import optax

from experiments.train.losses import Learner

CLIP, DECAY = 1.0, 0.05
TABLE_RATE = 15.0
"""Rate of the n-gram table over that of the rest: most of its rows are met a few times only."""


@dataclass(frozen=True)
class Pace:
    """How the rate goes: up in `warmup` steps, at least 1, level, and down to nothing in the last part.

    cooldown: that part's share of all steps; it takes one step at least.
    """

    rate: float
    steps: int
    warmup: int
    cooldown: float

    @property
    def cooldown_steps(self) -> int:
        """How many steps at the end are slower and slower."""
        return max(int(self.steps * self.cooldown), 1)

    @property
    def level_steps(self) -> int:
        """Steps before the cooldown; up to here nothing depends on how many there are in all."""
        return max(self.steps - self.cooldown_steps, self.warmup)

    def schedule(self) -> optax.Schedule:
        """The rate by step."""
        up, down = optax.linear_schedule(0.0, self.rate, self.warmup), (self.rate, 0.0, self.cooldown_steps)
        return optax.join_schedules([up, optax.linear_schedule(*down)], [self.level_steps])


def optimiser(pace: Pace) -> optax.GradientTransformation:
    """Over any tree; the table of a `Learner` by Adagrad, so that a row's first step is as large as the rate."""
    rate = pace.schedule()
    kinds: dict[Hashable, optax.GradientTransformation] = {
        "matrix": optax.adamw(rate, b2=0.98, weight_decay=DECAY),
        "vector": optax.adam(rate, b2=0.98),
        "table": optax.chain(
            optax.scale_by_rss(initial_accumulator_value=0.0, eps=1e-16),
            optax.scale_by_learning_rate(lambda step: TABLE_RATE * rate(step)),
        ),
    }
    return optax.chain(optax.clip_by_global_norm(CLIP), optax.multi_transform(kinds, _labels))


def _labels(tree: Any) -> Any:
    labels = jax.tree.map(lambda a: "matrix" if a.ndim > 1 else "vector", tree)
    return labels.replace(table="table") if isinstance(tree, Learner) else labels
