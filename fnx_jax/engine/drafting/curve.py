"""Host side: a time as a function of a whole number, from single noisy measurements. Read next: costs.py."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from fnx_jax.engine.drafting.moving import Time

SLOPE_WEIGHT = 16.0
"""What the slope to begin with weighs: as much as a time measured once, four away from the first."""
REACH = 1.5
"""How far away a measured time still says something about a number."""
STALE = 0.005
"""A time that has moved by less than this part is as good as it was."""
FEW = 8.0
"""The square of how many measurements of a number weigh half of what they would if there were many."""
OTHERS = 0.3
"""What the time of another number weighs beside a number's own, however near."""
LINE_WEIGHT = 0.5
"""What the line weighs where times depart from it."""
DOUBT = 1.25
"""A number's first time may be so many times what was expected: more is believed when more say so."""


class Curve:
    """A line through the least number's time, bent towards the times that were measured nearby.

    slope: ms for each number more, to begin with. tile: numbers of a tile; a border parts what is otherwise near.
    """

    def __init__(self, slope: Callable[[], float], tile: int | None = None, reach: float = REACH):
        self._slope, self._tile, self._reach = slope, tile, reach
        self._times: dict[int, Time] = {}
        self._expected: list[float] = []
        self._bent: dict[int, float] = {}

    def note(self, number: int, ms: float, rate: float, most: float = float("inf")) -> None:
        """Takes a measured time. most: what the very first one may say."""
        if number not in self._times:
            most = DOUBT * self.ms(number) if self._times else most
            self._times[number] = Time(most)
        self._times[number].note(ms, rate)
        if abs(self._times[number].ms - self._bent.get(number, 0.0)) > STALE * self._times[number].ms:
            self._expected = []

    @property
    def known(self) -> dict[int, Time]:
        """What was measured, by number."""
        return self._times

    def ms_of_first(self) -> float:
        """The time of the least number that was measured."""
        return self._times[min(self._times)].ms

    def slope(self, start: float) -> float:
        """Milliseconds that each number more adds, never below 0; `start` where only one was measured."""
        first = min(self._times)
        start_ms = self.ms_of_first()
        weighed, weight = SLOPE_WEIGHT * start, SLOPE_WEIGHT
        for number, time in self._times.items():
            weighed += _weight(time) * (number - first) * (time.ms - start_ms)
            weight += _weight(time) * (number - first) ** 2
        return max(0.0, weighed / weight)

    def ms(self, number: int) -> float:
        """The time to expect. Raises: ValueError where none was measured."""
        if not self._times:
            raise ValueError("costs: no time was measured")
        if number >= len(self._expected):
            self._bent = {known: time.ms for known, time in self._times.items()}
            self._expected = self._bend(max(2 * number, 2 * max(self._times), 32)).tolist()
        return self._expected[number]

    def _bend(self, most: int) -> Float[np.ndarray, " most"]:
        numbers, first = np.arange(most), min(self._times)
        known = np.array(list(self._times))
        ms = np.array([time.ms for time in self._times.values()])
        count = np.array([_weight(time) for time in self._times.values()])
        line = np.maximum(ms[known == first] + self.slope(self._slope()) * (numbers - first), ms[known == first] / 2)
        away = np.abs(numbers[:, None] - known).astype(float)
        if self._tile:
            away += 2 * self._reach * np.abs((numbers[:, None] - 1) // self._tile - (known - 1) // self._tile)
        weight = count * np.exp(-away / self._reach) * np.where(away > 0, OTHERS, 1.0)
        bent = line + (weight * (ms - line[known])).sum(axis=1) / (weight.sum(axis=1) + LINE_WEIGHT)
        return np.maximum(bent, ms.min() / 2)  # times far apart may bend it below 0


def _weight(time: Time) -> float:
    return time.count**3 / (time.count**2 + FEW)
