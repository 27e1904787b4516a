"""Host side: times two things in turn, so that what else the machine does falls on both.

A repeat is A B B A; its ratio is that of the two sums, so a steady drift cancels. Medians over repeats are reported.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Compared:
    """Milliseconds a call of both, medians; ratio: median over repeats of A / B; low, high: its quartiles."""

    a_ms: float
    b_ms: float
    ratio: float
    low: float
    high: float
    repeats: int


def compare(a: Callable[[], object], b: Callable[[], object], repeats: int) -> Compared:
    """Runs A and B once unmeasured, then `repeats` times A B B A. Both must wait for their results."""
    a(), b()
    times = np.array([[timed_ms(f) for f in (a, b, b, a)] for _ in range(repeats)])
    first, second = times[:, 0] + times[:, 3], times[:, 1] + times[:, 2]
    low, ratio, high = np.percentile(first / second, (25, 50, 75))
    return Compared(
        a_ms=float(np.median(times[:, [0, 3]])),
        b_ms=float(np.median(times[:, [1, 2]])),
        ratio=float(ratio),
        low=float(low),
        high=float(high),
        repeats=repeats,
    )


def timed_ms(f: Callable[[], object]) -> float:
    """Wall time of one call, in milliseconds."""
    start = time.perf_counter()
    f()
    return (time.perf_counter() - start) * 1e3


def fastest(candidates: list[Callable[[], object]], tries: int = 3) -> int:
    """Which of several is the fastest, by its best try; tries are interleaved, the first ones unmeasured."""
    for candidate in candidates:
        candidate()
    times = np.array([[timed_ms(candidate) for candidate in candidates] for _ in range(tries)])
    return int(times.min(axis=0).argmin())
