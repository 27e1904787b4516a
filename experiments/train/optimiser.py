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
    """How the rate goes: up in `warmup` steps, level, and down to nothing in the last part, `cooldown` of all steps."""

    rate: float
    steps: int
    warmup: int
    cooldown: float

    def schedule(self) -> optax.Schedule:
        """The rate by step."""
        down = max(int(self.steps * self.cooldown), 1)
        parts = [optax.linear_schedule(0.0, self.rate, self.warmup), optax.linear_schedule(self.rate, 0.0, down)]
        return optax.join_schedules(parts, [max(self.steps - down, self.warmup)])


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
