"""Host side: what rounds and draft calls cost, in milliseconds, from those that were timed. Read next: curve.py."""

from collections.abc import Iterable, Mapping

from fnx_jax.engine.drafting.curve import REACH, Curve
from fnx_jax.engine.drafting.moving import SPREAD
from fnx_jax.engine.drafting.settings import WINDOW_ROWS

ROW_SHARE = 0.05
"""Of a plain round's time, what one more row is taken to add before any was timed."""
STEP_SHARE = 0.1
"""Of a plain round's time, what a head step is taken to cost before any was timed."""

HEAD_DOUBT = 2.5
"""The first time of a draft call may be so many times what was expected: more is believed when more say so."""


class Costs:
    """Times of verify rounds by lanes and rows, and of draft calls by lanes and steps.

    rate: weight of the newest time.
    """

    def __init__(self, rate: float):
        self._rate = rate
        self._rounds: dict[int, Curve] = {}
        self._heads: dict[int, Curve] = {}
        self._near_rounds: dict[int, Curve] = {}
        self._near_heads: dict[int, Curve] = {}

    def note_round(self, lanes: int, rows: int, ms: float) -> None:
        """Takes the time of a round of nothing but windows."""
        if lanes not in self._rounds:
            self._rounds[lanes] = Curve(lambda: self._row_ms(lanes), WINDOW_ROWS, REACH * lanes**0.5)
            self._near_rounds.clear()
        self._rounds[lanes].note(rows, ms, self._rate)

    def note_head(self, lanes: int, steps: int, ms: float) -> None:
        """Takes the time of a draft call."""
        most = HEAD_DOUBT * self.head_ms(lanes, steps) if self.known else float("inf")
        if lanes not in self._heads:
            self._heads[lanes] = Curve(lambda: self._step_ms(lanes))
            self._near_heads.clear()
        self._heads[lanes].note(steps, ms, self._rate, most)

    @property
    def known(self) -> bool:
        """Whether any round was timed."""
        return bool(self._rounds)

    def plain_known(self, lanes: int) -> bool:
        """Whether plain rounds of so many lanes were timed, more than once: the first time may be anything."""
        return lanes in self._rounds and lanes in (known := self._rounds[lanes].known) and known[lanes].count > 1

    def round_ms(self, lanes: int, rows: int) -> float:
        """The time to expect of a round. Raises: ValueError where no round was timed."""
        if not self._rounds:
            raise ValueError("costs: no round was timed")
        if lanes not in self._near_rounds:
            self._near_rounds[lanes] = self._rounds[_nearest(self._rounds, lanes)]
        return self._near_rounds[lanes].ms(rows)

    def head_ms(self, lanes: int, steps: int) -> float:
        """The time to expect of a draft call; 0 for none. Raises: ValueError where no round was timed."""
        if not steps or not lanes:
            return 0.0
        if not self._heads:
            return STEP_SHARE * steps * self.round_ms(lanes, lanes)
        if lanes not in self._near_heads:
            self._near_heads[lanes] = self._heads[_nearest(self._heads, lanes)]
        return self._near_heads[lanes].ms(steps)

    def clip_round(self, lanes: int, rows: int, ms: float) -> float:
        """A round's time, no further from the one to expect than a time may lie. Raises: ValueError as `round_ms`."""
        expected = self.round_ms(lanes, rows)
        return min(max(ms, expected / SPREAD), expected * SPREAD)

    def table(self) -> dict[str, dict[int, dict[int, float]]]:
        """All times: "round" by lanes and rows, "head" by lanes and steps."""
        return {name: _times(curves) for name, curves in (("round", self._rounds), ("head", self._heads))}

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

    def _row_ms(self, lanes: int) -> float:
        nearest = _sloped(self._rounds, lanes)
        return nearest.slope(ROW_SHARE * nearest.ms_of_first())

    def _step_ms(self, lanes: int) -> float:
        nearest = _sloped(self._heads, lanes)
        return nearest.slope(nearest.ms_of_first() / min(nearest.known))


def _sloped(curves: Mapping[int, Curve], lanes: int) -> Curve:
    """The curve of the nearest number of lanes that has a slope of its own, else the one of so many."""
    others = [known for known, curve in curves.items() if known != lanes and len(curve.known) > 1]
    return curves[_nearest(others, lanes) if others else lanes]


def _nearest(known: Iterable[int], lanes: int) -> int:
    return min(known, key=lambda one: (abs(one - lanes), one))


def _times(curves: Mapping[int, Curve]) -> dict[int, dict[int, float]]:
    return {
        lanes: {number: time.ms for number, time in sorted(curve.known.items())}
        for lanes, curve in sorted(curves.items())
    }
