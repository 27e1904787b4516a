"""Host side: times two things in turn, so that what else the machine does falls on both.

A repeat is A B B A; its ratio is that of the two sums, so a steady drift cancels. Medians over repeats are reported.
Beside the wall the process' own time on all cores is taken, which a busy machine disturbs less.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Compared:
    """Milliseconds a call of both, medians; ratio: median over repeats of A / B; low, high: its quartiles.

    cpu_ratio: the same of the process' time.
    """

    a_ms: float
    b_ms: float
    ratio: float
    cpu_ratio: float
    low: float
    high: float
    repeats: int

    def columns(self) -> tuple[str, ...]:
        """A table's texts: both times, the ratio of the wall, that of the process, the quartiles."""
        spread = f"{self.low:.2f}-{self.high:.2f}"
        return f"{self.a_ms:.1f}", f"{self.b_ms:.1f}", f"{self.ratio:.2f}", f"{self.cpu_ratio:.2f}", spread


def compare(a: Callable[[], object], b: Callable[[], object], repeats: int) -> Compared:
    """Runs A and B once unmeasured, then `repeats` times A B B A. Both must wait for their results."""
    a()
    b()
    wall, cpu = np.moveaxis(np.array([[_timed(f) for f in (a, b, b, a)] for _ in range(repeats)]), 2, 0)
    low, ratio, high = np.percentile(_ratios(wall), (25, 50, 75))
    return Compared(
        a_ms=float(np.median(wall[:, [0, 3]])),
        b_ms=float(np.median(wall[:, [1, 2]])),
        ratio=float(ratio),
        cpu_ratio=float(np.median(_ratios(cpu))),
        low=float(low),
        high=float(high),
        repeats=repeats,
    )


def _ratios(times: np.ndarray) -> np.ndarray:
    return (times[:, 0] + times[:, 3]) / (times[:, 1] + times[:, 2])


def _timed(f: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of one call: of the wall, of this process on all cores."""
    wall, cpu = time.perf_counter(), time.process_time()
    f()
    return (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3


def fastest(candidates: list[Callable[[], object]], tries: int = 5) -> int:
    """Which of several takes the least of the process' time, by its best try; tries are interleaved after one each."""
    for candidate in candidates:
        candidate()
    times = np.array([[_timed(candidate)[1] for candidate in candidates] for _ in range(tries)])
    return int(times.min(axis=0).argmin())
