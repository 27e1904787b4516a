"""Host side: draft heads that are none: told what the model will draw, they say something about it.

Read next: fake.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fnx_jax.engine.steps import Draw

FakeHead = Callable[[tuple[int, ...], int], Sequence[int]]
"""Given the tokens that the model will draw, and the size of the vocabulary, the drafts: at most as many."""


def perfect(truth: tuple[int, ...], vocabulary: int) -> Sequence[int]:
    """What the model will draw."""
    return truth


def adversarial(truth: tuple[int, ...], vocabulary: int) -> Sequence[int]:
    """Never what the model will draw."""
    return [(token + 1) % vocabulary for token in truth]


def right_for(count: int) -> FakeHead:
    """Right `count` times, then wrong."""
    return lambda truth, vocabulary: [*truth[:count], *adversarial(truth[count:], vocabulary)]


def guessing(seed: int) -> FakeHead:
    """Right now and then, and of any length."""
    rng = np.random.default_rng(seed)

    def head(truth: tuple[int, ...], vocabulary: int) -> Sequence[int]:
        right = rng.random(len(truth)) < 0.6
        drafts = np.where(right, np.array(truth, np.int64), rng.integers(0, vocabulary, len(truth)))
        return drafts[: rng.integers(0, len(truth) + 1)].tolist()

    return head


def with_token(draw: Draw, token: int) -> Draw:
    """A draw after one more reply token."""
    if draw.counts_V is None or draw.seen_V is None:
        return draw
    counts_V, seen_V = draw.counts_V.copy(), draw.seen_V.copy()
    counts_V[token] += 1
    seen_V[token] = True
    return replace(draw, counts_V=counts_V, seen_V=seen_V)
