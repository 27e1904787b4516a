"""Host side: what of one width decides between drafted and plain rounds. Read next: policy.py."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fnx_jax.engine.drafting.ledger import Ledger
from fnx_jax.engine.drafting.settings import DraftSettings


class Waits:
    """Rounds until the next try: twice as many after each that failed, half as many after each that did not."""

    def __init__(self, first: int, most: int):
        self._first, self._most = first, most
        self._wait = self._left = first

    def due(self, covered: Callable[[], bool] = lambda: True) -> bool:
        """Counts a round; whether the wait is over. Where a try is not covered, only the longest wait is enough."""
        self._left -= 1
        if self._left < 0 and self._wait < self._most and not covered():
            self.failed()
        return self._left < 0

    def failed(self) -> None:
        """The try did not pay."""
        self._wait = min(self._most, 2 * self._wait)
        self._left = self._wait

    def landed(self) -> None:
        """The try paid; the next one may come at once."""
        self._wait = max(self._first, self._wait // 2)
        self._left = 0

    def reset(self) -> None:
        """Nothing is known against tries any more."""
        self._wait = self._left = self._first


class RateGuard:
    """Compares the tokens per millisecond that drafted rounds made with those of plain ones."""

    def __init__(self, settings: DraftSettings):
        self._settings = settings
        self._drafted: deque[tuple[int, float]] = deque(maxlen=settings.rate_rounds)
        self._plain: deque[tuple[int, float]] = deque(maxlen=settings.rate_rounds)
        self._waits = Waits(settings.plain_wait_first, settings.plain_wait_most)
        self._open = True

    def allows(self) -> bool:
        """Whether the next round may have drafts; asked once a round. Never False for more than the longest wait."""
        if not self._open and self._waits.due():
            self._open = True
            self._drafted.clear()
        return self._open

    def note(self, drafted: bool, tokens: int, ms: float) -> None:
        """Takes a round, its draft call included."""
        (self._drafted if drafted else self._plain).append((tokens, ms))
        if not drafted or not self._open or not self._plain or len(self._drafted) < self._settings.rate_trial:
            return
        luck = self._settings.rate_luck / len(self._drafted) ** 0.5
        if _rate(self._drafted) < self._settings.plain_margin * (1 - luck) * _rate(self._plain):
            self._open = False
            self._waits.failed()
        elif len(self._drafted) == self._settings.rate_rounds:
            self._waits.reset()


@dataclass(frozen=True)
class Spent:
    """What a round committed and took.

    drafts: under test. window_ms, head_ms: of its rows and of its draft call.
    """

    lanes: int
    tokens: int
    drafts: int
    window_ms: float
    head_ms: float

    @property
    def ms(self) -> float:
        """All of it."""
        return self.window_ms + self.head_ms


class Guard:
    """The state of one width, of all streams that ever ran at it.

    ledger: what drafts may lose. probes: until the next probe while plain rounds win.
    untimed: rounds before the first whose time is known.
    """

    def __init__(self, settings: DraftSettings):
        self._settings = settings
        self.ledger = Ledger(settings)
        self.probes = Waits(settings.plain_wait_first, settings.plain_wait_most)
        self._rates = RateGuard(settings) if settings.rate_guard else None
        self._deeper = 0
        self._refreshes = Waits(settings.plain_wait_first, settings.plain_wait_most)
        self.untimed = 0

    def allows(self) -> bool:
        """Whether the rates of rounds leave the head a chance; asked once a round."""
        return self._rates is None or self._rates.allows()

    def stale(self) -> bool:
        """Counts a drafted round; whether a plain one shall be timed again: less often, the more often it was."""
        due = self._refreshes.due()
        if due:
            self._refreshes.failed()
        return due

    def deepens(self) -> bool:
        """Counts a drafted round; whether it shall go one deeper than it pays."""
        self._deeper = (self._deeper + 1) % self._settings.probe_every
        return not self._deeper

    def note(self, spent: Spent, plain_ms: float, measured: bool) -> None:
        """Takes a round. plain_ms: of one without drafts. measured: its times were, and its drafts meant to pay."""
        plain = not spent.drafts and not spent.head_ms
        gain_ms = 0.0 if plain else spent.tokens / spent.lanes * plain_ms - spent.ms
        self.ledger.book(gain_ms, spent.ms, plain_ms)
        if self._rates and measured and (plain or spent.head_ms):  # copies alone say nothing of the head's drafts
            self._rates.note(not plain, spent.tokens, spent.ms)


def _rate(rounds: deque[tuple[int, float]]) -> float:
    return sum(tokens for tokens, _ in rounds) / sum(ms for _, ms in rounds)
