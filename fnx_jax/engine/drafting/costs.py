"""Host side: what rounds and draft calls cost, in milliseconds, from those that were timed. Read next: policy.py."""

from bisect import bisect_left
from collections.abc import Callable, Mapping

from fnx_jax.engine.drafting.moving import Time

ROW_SHARE = 0.05
"""Of a round's time, what one more row is taken to add where only one number of rows was timed."""
STEP_SHARE = 0.1
"""Of a plain round's time, what a head step is taken to cost where none was timed."""


class Curve:
    """Times by a whole number; between two that were timed on a line, beyond them as steep as the whole.

    lone: slope where there is one time only, from its number and its ms.
    """

    def __init__(self, lone: Callable[[int, float], float]):
        self._times: dict[int, Time] = {}
        self._known: list[int] = []
        self._lone = lone

    def note(self, number: int, ms: float, rate: float) -> None:
        """Takes a time."""
        if number not in self._times:
            self._times[number] = Time()
            self._known = sorted(self._times)
        self._times[number].note(ms, rate)

    @property
    def first(self) -> int:
        """The least number that was timed."""
        return self._known[0]

    @property
    def last(self) -> int:
        """The greatest number that was timed."""
        return self._known[-1]

    def time(self, number: int) -> Time | None:
        """What is known of this very number."""
        return self._times.get(number)

    def ms(self, number: int) -> float:
        """The time to expect; never less than half the first one."""
        known = self._known
        if number > known[-1]:
            return self._ms(known[-1]) + self._slope() * (number - known[-1])
        if number < known[0]:
            return max(self._ms(known[0]) / 2, self._ms(known[0]) - self._slope() * (known[0] - number))
        place = bisect_left(known, number)
        after = known[place]
        if after == number:
            return self._ms(after)
        before = known[place - 1]
        share = (number - before) / (after - before)
        return (1 - share) * self._ms(before) + share * self._ms(after)

    def table(self) -> dict[int, float]:
        """The times by number."""
        return {number: self._ms(number) for number in self._known}

    def _ms(self, number: int) -> float:
        return self._times[number].ms

    def _slope(self) -> float:
        first, last = self.first, self.last
        if first == last:
            return self._lone(first, self._ms(first))
        return max(0.0, (self._ms(last) - self._ms(first)) / (last - first))


class Costs:
    """Times of verify rounds by lanes and rows, and of draft calls by lanes and steps."""

    def __init__(self, rate: float):
        self._rate = rate
        self._rounds: dict[int, Curve] = {}
        self._heads: dict[int, Curve] = {}

    def note_round(self, lanes: int, rows: int, ms: float) -> None:
        """Takes the time of a round of nothing but windows."""
        self._rounds.setdefault(lanes, Curve(lambda _, ms: ROW_SHARE * ms)).note(rows, ms, self._rate)

    def note_head(self, lanes: int, steps: int, ms: float) -> None:
        """Takes the time of a draft call."""
        self._heads.setdefault(lanes, Curve(lambda steps, ms: ms / steps)).note(steps, ms, self._rate)

    @property
    def known(self) -> bool:
        """Whether any round was timed."""
        return bool(self._rounds)

    def plain_known(self, lanes: int) -> bool:
        """Whether a plain round of so many lanes was timed."""
        return lanes in self._rounds and self._rounds[lanes].time(lanes) is not None

    def round_ms(self, lanes: int, rows: int) -> float:
        """The time to expect of a round. Raises: ValueError where no round was timed."""
        if not self._rounds:
            raise ValueError("costs: no round was timed")
        own = self._rounds.get(lanes)
        near = _nearest(self._rounds, lanes)
        if own is None:
            return near.ms(rows)
        other = self._reaching(lanes, rows) if rows > own.last else None
        if other is not None:
            return own.ms(own.last) + max(0.0, other.ms(rows) - other.ms(own.last))
        return own.ms(rows)

    def head_ms(self, lanes: int, steps: int) -> float:
        """The time to expect of a draft call; 0 for none. Raises: ValueError where no round was timed."""
        if not steps or not lanes:
            return 0.0
        if not self._heads:
            return STEP_SHARE * steps * self.round_ms(lanes, lanes)
        return _nearest(self._heads, lanes).ms(steps)

    def clip_round(self, lanes: int, rows: int, ms: float) -> float:
        """A round's time, no further from the usual one than a time may lie."""
        curve = self._rounds.get(lanes)
        time = curve.time(rows) if curve else None
        return time.clip(ms) if time else ms

    def rows_timed(self, lanes: int) -> int:
        """The most rows of a round that was timed at so many lanes; 0 for none."""
        return self._rounds[lanes].last if lanes in self._rounds else 0

    def table(self) -> dict[str, dict[int, dict[int, float]]]:
        """All times: "round" by lanes and rows, "head" by lanes and steps."""
        return {
            "round": {lanes: curve.table() for lanes, curve in sorted(self._rounds.items())},
            "head": {lanes: curve.table() for lanes, curve in sorted(self._heads.items())},
        }

    @classmethod
    def of(cls, table: Mapping[str, Mapping], rate: float) -> "Costs":
        """Costs that begin with a table as `table` returns it; numbers may be words, as in JSON.

        Raises: ValueError where it is none.
        """
        costs = cls(rate)
        if set(table) != {"round", "head"}:
            raise ValueError(f"costs: entries {sorted(table)}, round and head were wanted")
        for name, note in (("round", costs.note_round), ("head", costs.note_head)):
            for lanes, times in table[name].items():
                for number, ms in times.items():
                    if not (int(lanes) > 0 and int(number) > 0 and float(ms) > 0):
                        raise ValueError(f"costs: {name} {lanes} {number}: {ms}, numbers above 0 were wanted")
                    note(int(lanes), int(number), float(ms))
        return costs

    def _reaching(self, lanes: int, rows: int) -> Curve | None:
        own = self._rounds[lanes]
        reaching = {n: c for n, c in self._rounds.items() if n != lanes and c.first <= own.last and c.last >= rows}
        return _nearest(reaching, lanes) if reaching else None


def _nearest(curves: Mapping[int, Curve], lanes: int) -> Curve:
    return curves[min(curves, key=lambda known: (abs(known - lanes), known))]
