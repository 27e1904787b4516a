"""Host side: how likely drafts land, of the server and of each lane. Read next: policy.py."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fnx_jax.engine.drafting.moving import Mean
from fnx_jax.engine.drafting.settings import WINDOW_ROWS, DraftSettings

BUCKETS = 10


@dataclass
class _Lane:
    depth: list[Mean] = field(default_factory=lambda: [Mean(0.0) for _ in range(WINDOW_ROWS - 1)])
    landed: float = 0.0
    promised: float = 0.0


class Acceptance:
    """Chances that draft j lands where those before it did.

    What a lane has shown stands beside what the server has: a new lane begins with the latter. The head's own chances
    are taken at what such chances were worth so far, times how far the lane is above or below that.
    """

    def __init__(self, settings: DraftSettings):
        self._settings = settings
        self._server = [Mean(0.0) for _ in range(WINDOW_ROWS - 1)]
        self._worth = [Mean((bucket + 0.5) / BUCKETS, settings.prior_rounds) for bucket in range(BUCKETS)]
        self._lanes: dict[int, _Lane] = {}
        self._chains: dict[tuple[int, float], list[float]] = {}

    def chain(self, order: int, depth: int, hope: float = 0.0) -> list[float]:
        """Chances of a chain of drafts that are not made yet. hope: how much luck more than so far, in spreads."""
        key = (order, hope)
        if key not in self._chains or len(self._chains[key]) < depth:
            self._chains[key] = self._chain(order, depth, hope)
        return self._chains[key][:depth]

    def _chain(self, order: int, depth: int, hope: float) -> list[float]:
        known, chances, last = self._lanes.get(order), [], 1.0
        for draft in range(depth):
            # How a deep draft fares that was never tried follows from those before it.
            last = self._chance(draft, last * self._settings.prior_step(draft), known)
            chances.append(min(1.0, last + hope * self._spread(draft)) if hope else last)
        return chances

    def landing(self, order: int, depth: int, chances: Sequence[float]) -> list[float]:
        """Chances of drafts that are made, from the head's own; those without one as in `chain`."""
        if len(chances) < depth:
            return self.chain(order, depth)
        known = self._lanes.get(order) or _Lane()
        trust = self._settings.lane_trust
        level = (known.landed + trust) / (known.promised + trust)
        return [min(1.0, level * self._worth[_bucket(chance)].value) for chance in chances[:depth]]

    def note(self, order: int, hits: Sequence[bool], chances: Sequence[float]) -> None:
        """Takes which drafts of a chain landed; nothing is known beyond the first that did not."""
        lane = self._lanes.setdefault(order, _Lane())
        self._chains.clear()
        settings, keep = self._settings, 1 - self._settings.depth_rate
        for draft, hit in enumerate(hits):
            self._server[draft].note(hit, settings.server_rate)
            lane.depth[draft].note(hit, settings.depth_rate)
            if draft < len(chances):
                worth = self._worth[_bucket(chances[draft])]
                lane.landed = keep * lane.landed + hit
                lane.promised = keep * lane.promised + worth.value
                worth.note(hit, settings.server_rate)

    def forget(self, order: int) -> None:
        """A lane has ended; what the server learnt from it stays."""
        self._lanes.pop(order, None)
        self._chains = {key: chain for key, chain in self._chains.items() if key[0] != order}

    def _spread(self, draft: int) -> float:
        """How far a chance may lie from what so few trials say."""
        return (
            0.5 / (self._settings.prior_rounds + min(self._server[draft].count, 1 / self._settings.server_rate)) ** 0.5
        )

    def _chance(self, draft: int, prior: float, known: _Lane | None) -> float:
        settings, server = self._settings, self._server[draft]
        value = _blend(prior, settings.prior_rounds, server, settings.server_rate)
        return value if known is None else _blend(value, settings.lane_trust, known.depth[draft], settings.depth_rate)


def _blend(prior: float, weight: float, seen: Mean, rate: float) -> float:
    trials = min(seen.count, 1 / rate)
    return (weight * prior + trials * seen.value) / (weight + trials)


def _bucket(chance: float) -> int:
    return min(BUCKETS - 1, max(0, int(chance * BUCKETS)))
