"""Host side: what is known of each lane that decodes: its copies, how its drafts fare. Read next: acceptance.py."""

from collections.abc import Sequence
from dataclasses import dataclass

from fnx_jax.engine.drafting.acceptance import Acceptance
from fnx_jax.engine.drafting.allocate import Chain
from fnx_jax.engine.drafting.copies import Copier
from fnx_jax.engine.drafting.moving import Mean
from fnx_jax.engine.drafting.settings import WINDOW_ROWS, DraftSettings
from fnx_jax.engine.drafting.streams import Outcome, Stream, Window

SURE, SURER = 0.8, 0.9
"""Where no time is known: chances of the first draft from which on a second and a third are made."""


@dataclass
class _Lane:
    """copier: its copies. rounds: that it took part in. tried: the round of its newest draft of the head."""

    copier: Copier
    rounds: int = 0
    tried: int = -1


class Lanes:
    """All lanes, by the order of their streams, and what outlives them."""

    def __init__(self, settings: DraftSettings, depth: int):
        self._settings, self._depth = settings, depth
        self._acceptance = Acceptance(settings)
        self._copy_chance = Mean(settings.copy_chance, settings.copy_trust)
        self._lanes: dict[int, _Lane] = {}
        self._round = 0

    def see(self, streams: Sequence[Stream]) -> None:
        """Takes what the streams have become."""
        for stream in streams:
            if stream.order not in self._lanes:
                self._lanes[stream.order] = _Lane(Copier(self._settings, self._copy_chance.value))
            if stream.drafts:
                self._lanes[stream.order].copier.index.catch_up(stream.tokens)

    def room(self, stream: Stream) -> int:
        """Drafts that the next window can hold."""
        return min(WINDOW_ROWS, stream.room) - 1 if stream.drafts and not stream.forced else 0

    def planned(self, stream: Stream, hope: float = 0.0) -> Chain:
        """What the next window may hold, before the head has drafted. hope: as in Acceptance.chain."""
        copier, room = self._lanes[stream.order].copier, self.room(stream)
        copied = copier.offer(room, alone=False) if room else ()
        if copied:
            return Chain(copier.chances(len(copied)), head=False)
        return Chain(self._acceptance.chain(stream.order, min(room, self._depth), hope))

    def untimed(self, stream: Stream) -> int:
        """Drafts of a lane while nothing is known of times."""
        chance = self._acceptance.chain(stream.order, 1)[0]
        return min(self.room(stream), self._depth, 1 + (chance >= SURE) + (chance >= SURER))

    def offer(self, stream: Stream, alone: bool) -> Window:
        """What is there to test: forced tokens, else a copy, else what is held. alone: it is in no company."""
        room = self.room(stream)
        if stream.forced:
            forced = stream.forced[: min(WINDOW_ROWS, stream.room) - 1]
            return Window(stream.order, "forced", forced, len(forced))
        copied = self._lanes[stream.order].copier.offer(room, alone) if room else ()
        if copied:
            return Window(stream.order, "copy", copied)
        held = stream.held[:room]
        return Window(stream.order, "head" if held else "plain", held, chances=stream.chances[: len(held)])

    def chain(self, offer: Window) -> Chain:
        """How likely what is offered lands."""
        if offer.source == "copy":
            return Chain(self._lanes[offer.order].copier.chances(len(offer.offered)), head=False)
        if offer.source == "head":
            return Chain(self._acceptance.landing(offer.order, len(offer.offered), offer.chances))
        return Chain(fixed=offer.tested)

    def chance(self, order: int) -> float:
        """The chance that a lane's first draft lands."""
        return self._acceptance.chain(order, 1)[0]

    def tried(self, order: int) -> int:
        """The round of a lane's newest draft of the head; -1 before any."""
        return self._lanes[order].tried

    def note_round(self, outcomes: Sequence[Outcome]) -> bool:
        """Takes a round; whether it was the first of one of its lanes."""
        self._round += 1
        for outcome in outcomes:
            self._note(outcome)
        known = [self._lanes[o.window.order] for o in outcomes if o.window.order in self._lanes]
        first = any(lane.rounds == 0 for lane in known)
        for lane in known:
            lane.rounds += 1
        return first

    def forget(self, order: int) -> None:
        """A stream has ended."""
        self._lanes.pop(order, None)
        self._acceptance.forget(order)

    def _note(self, outcome: Outcome) -> None:
        window, hits = outcome.window, outcome.hits()
        lane = self._lanes.get(window.order)
        if lane is None or not hits:
            return
        if window.source == "copy":
            lane.copier.note(hits, window.tested, whole=window.tested == len(window.offered))
            for hit in hits:
                self._copy_chance.note(hit, self._settings.server_rate)
        if window.source == "head":
            lane.tried = self._round
            self._acceptance.note(window.order, hits, window.chances)
