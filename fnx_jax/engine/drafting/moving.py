"""Host side: means of what comes one by one, quick at first and steady later."""

from dataclasses import dataclass

SPREAD = 1.4
"""How far a time may lie from what is known, as a factor, before it counts as that far."""
FIRST = 5


@dataclass
class Mean:
    """A moving mean whose start weighs `count` values."""

    value: float
    count: float = 0.0

    def note(self, value: float, rate: float) -> None:
        """Takes a value; it weighs as much as each before it until that would be less than `rate`."""
        self.count += 1
        self.value += max(rate, 1 / self.count) * (value - self.value)


class Time:
    """The usual milliseconds of something, whatever else stops the machine now and then.

    most: what a first measurement may say; each further one may say SPREAD times as much.
    """

    def __init__(self, most: float = float("inf")):
        self._most = most
        self._first: list[float] = []
        self._mean = Mean(0.0)

    @property
    def ms(self) -> float:
        """The lower middle one of the first FIRST measurements, a moving mean from there on."""
        return min(self._mean.value, self._most)

    @property
    def count(self) -> float:
        """Measurements that it rests on."""
        return self._mean.count

    def clip(self, ms: float) -> float:
        """A time no further from the usual one than SPREAD."""
        return min(max(ms, self.ms / SPREAD), self.ms * SPREAD)

    def note(self, ms: float, rate: float) -> None:
        """Takes a measured time."""
        if self._mean.count:
            self._most *= SPREAD
        if len(self._first) < FIRST:
            self._first.append(ms)
            count = len(self._first)
            self._mean = Mean(sorted(self._first)[(count - 1) // 2], count)
        else:
            self._mean.note(self.clip(ms), rate)
            self._mean.count = min(self._mean.count, 1 / rate)
