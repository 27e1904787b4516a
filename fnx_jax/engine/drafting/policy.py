"""Host side: decides, round by round, how deep lanes draft and which drafts are tested. No device, no clock.

A round commits one token a lane and those of its drafts that land. Drafts are added while the tokens to expect for a
millisecond grow; a round without any competes, and where it wins, single drafts go on being tried at growing distances.
What is learnt of costs and of drafts outlives the streams. Read next: allocate.py, guard.py, layout.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fnx_jax.engine.drafting.acceptance import Acceptance
from fnx_jax.engine.drafting.allocate import Chain, Price, allocate
from fnx_jax.engine.drafting.copies import Copier
from fnx_jax.engine.drafting.costs import Costs
from fnx_jax.engine.drafting.guard import Guard
from fnx_jax.engine.drafting.layout import lay_out
from fnx_jax.engine.drafting.moving import Mean
from fnx_jax.engine.drafting.settings import WINDOW_ROWS, DraftSettings
from fnx_jax.engine.drafting.streams import Outcome, Stream, Window

LARGE_GAIN = 1.5
"""Drafts that promise so many times the plain rate need no newer time of a plain round."""
UNTIMED = 4
"""Plain rounds to wait for one whose time is that of a plain round: one may hold prompt rows, for long."""
NEWS = 0.6
"""A probe that lands is news below this chance. Above it, it was known that drafts land, and that they do not pay."""
SURE, SURER = 0.8, 0.9
"""Where no time is known: chances of the first draft from which on a second and a third are made."""


@dataclass
class _Lane:
    """copier: its copies. rounds: that it took part in. probed: the round of its newest draft under test."""

    copier: Copier
    rounds: int = 0
    probed: int = -1


class DraftPolicy:
    """A Drafter (see streams.py) that learns acceptance by lane, costs by width, and drafts where that pays.

    settings: what it does not learn. draft_depth: drafts that the head can chain at most, 0 without a head.
    costs: what is known of times, of an earlier run perhaps; none by default.
    """

    def __init__(self, settings: DraftSettings, draft_depth: int, costs: Costs | None = None):
        self._settings = settings
        self._depth = min(settings.depth_most, draft_depth)
        self.costs = costs or Costs(settings.cost_rate)
        self._acceptance = Acceptance(settings)
        self._copy_chance = Mean(settings.copy_chance, settings.copy_trust)
        self._guards: dict[int, Guard] = {}
        self._lanes: dict[int, _Lane] = {}
        self._round = 0
        self._head = (0, 0)
        self._head_ms = 0.0
        self._probe: int | None = None
        self._deeper: int | None = None
        self._least: dict[int, int] = {}

    @property
    def confidence(self) -> float:
        """Where the head shall end a chain (see DraftPlan)."""
        return self._settings.confidence

    def depths(self, streams: Sequence[Stream]) -> tuple[int, ...]:
        """Drafts that each stream's head shall make now. Streams: those that the next round will decode."""
        self._head, self._head_ms, self._probe, self._deeper = (0, 0), 0.0, None, None
        self._least = {}
        none = (0,) * len(streams)
        for stream in streams:
            self._lane(stream)
        if not streams or not self._depth:
            return none
        guard = self._guard(len(streams))
        if not self.costs.plain_known(len(streams)) and guard.untimed < UNTIMED:
            guard.untimed += 1
            return none  # a plain round first: all else is judged by it
        rooms = [self._room(stream) for stream in streams]
        if not self.costs.known:
            return tuple(min(room, self._untimed(stream.order)) for stream, room in zip(streams, rooms, strict=True))
        chains = [self._planned(stream, room) for stream, room in zip(streams, rooms, strict=True)]
        best, plain = allocate(chains, self._price(len(streams)), self._spare_ms(guard, len(streams)))
        heads = [count if chain.head else 0 for count, chain in zip(best.counts, chains, strict=True)]
        if not self._settings.plain_guard:
            heads = [
                max(count, min(1, len(chain.chances))) if chain.head else 0
                for count, chain in zip(heads, chains, strict=True)
            ]
        elif guard.rates is not None and not guard.rates.allows():
            return none
        elif best.rate < self._settings.plain_margin * plain.rate:
            best = self._hoped(guard, streams, rooms, plain)
            if best is None:
                return self._probing(guard, streams, rooms, plain)
            heads = [count if chain.head else 0 for count, chain in zip(best.counts, chains, strict=True)]
            self._least = {s.order: c for s, c in zip(streams, heads, strict=True) if c}
            return tuple(heads)
        else:
            guard.probes.reset()
        if not any(heads):
            return none
        guard.deeper += 1
        guard.unrefreshed += 1
        if guard.unrefreshed > self._settings.plain_wait_most and best.rate < LARGE_GAIN * plain.rate:
            return none
        return self._offers(guard, streams, heads, [min(room, self._depth) for room in rooms])

    def windows(self, streams: Sequence[Stream], rows: int, row_tile: int) -> list[Window]:
        """One window for each stream, of drafts that are held or copied, in at most `rows` rows.

        Raises: ValueError where the streams outnumber the rows.
        """
        if len(streams) > rows:
            raise ValueError(f"windows: {len(streams)} streams, {rows} rows")
        for stream in streams:
            self._lane(stream)
        offers = [self._offer(stream, len(streams) == 1) for stream in streams]
        shares, order = self._shares(streams, offers)
        return lay_out(offers, shares, [stream.room for stream in streams], rows, row_tile, order)

    def note_round(self, outcomes: Sequence[Outcome], ms: float, prompt_rows: int = 0) -> None:
        """Takes what a round committed. ms: its wall time, the draft call not included."""
        self._round += 1
        lanes, rows = len(outcomes), sum(1 + outcome.window.tested for outcome in outcomes)
        guard = self._guard(lanes)
        if rows == lanes:
            guard.unrefreshed = 0
        for outcome in outcomes:
            self._note_outcome(outcome, guard)
        known = [self._lanes[o.window.order] for o in outcomes if o.window.order in self._lanes]
        first = any(lane.rounds == 0 for lane in known)
        for lane in known:
            lane.rounds += 1
        if not outcomes:
            return
        pure = not prompt_rows and not first
        if self.costs.known:
            took = self.costs.round_ms(lanes, rows)
            took = (self.costs.clip_round(lanes, rows, ms) if pure else took) + self._head_ms
            plain_ms = self.costs.round_ms(lanes, lanes)
            tokens = sum(len(outcome.committed) for outcome in outcomes)
            forced = sum(o.window.tested for o in outcomes if o.window.source == "forced")
            drafted = rows > lanes + forced or self._head_ms > 0
            guard.ledger.book((tokens / lanes * plain_ms - took) if drafted else 0.0, took, plain_ms)
        if not pure:
            return  # the time is not that of windows alone
        self.costs.note_round(lanes, rows, ms)
        if guard.rates is not None and self._probe is None:
            tokens = sum(len(outcome.committed) for outcome in outcomes)
            ms = self.costs.clip_round(lanes, rows, ms) + self._head_ms
            guard.rates.note(rows > lanes or self._head_ms > 0, tokens, ms)

    def note_draft(self, lanes: int, steps: int, ms: float) -> None:
        """Takes the wall time of a draft call. lanes: that it drafted for. steps: drafts of the longest chain."""
        if steps and lanes:
            self.costs.note_head(lanes, steps, ms)
            self._head, self._head_ms = (lanes, steps), self.costs.head_ms(lanes, steps)

    def forget(self, order: int) -> None:
        """A stream has ended."""
        self._lanes.pop(order, None)
        self._acceptance.forget(order)

    def _lane(self, stream: Stream) -> _Lane:
        if stream.order not in self._lanes:
            self._lanes[stream.order] = _Lane(Copier(self._settings, self._copy_chance.value))
        lane = self._lanes[stream.order]
        if stream.drafts:
            lane.copier.index.catch_up(stream.tokens)
        return lane

    def _guard(self, lanes: int) -> Guard:
        return self._guards.setdefault(lanes, Guard(self._settings))

    def _price(self, lanes: int) -> Price:
        costs = self.costs
        return lambda drafts, heads, deepest: costs.round_ms(lanes, lanes + drafts) + costs.head_ms(heads, deepest)

    def _room(self, stream: Stream) -> int:
        """Drafts that the next window can hold."""
        return min(WINDOW_ROWS, stream.room) - 1 if stream.drafts and not stream.forced else 0

    def _planned(self, stream: Stream, room: int, hope: float = 0.0) -> Chain:
        copier = self._lanes[stream.order].copier
        copied = copier.offer(room, alone=False) if stream.drafts else ()
        if copied:
            return Chain(copier.chances(len(copied)), head=False)
        return Chain(self._acceptance.chain(stream.order, min(room, self._depth), hope))

    def _untimed(self, order: int) -> int:
        chance = self._acceptance.chain(order, 1)[0]
        return min(self._depth, 1 + (chance >= SURE) + (chance >= SURER))

    def _spare_ms(self, guard, lanes):
        return guard.ledger.spare_ms(self.costs.round_ms(lanes, lanes)) if self._settings.plain_guard else math.inf

    def _hoped(self, guard, streams, rooms, plain):
        chains = [self._planned(stream, room, self._settings.hope) for stream, room in zip(streams, rooms, strict=True)]
        best, _ = allocate(chains, self._price(len(streams)), self._spare_ms(guard, len(streams)))
        pays = best.rate >= self._settings.plain_margin * plain.rate
        return best if pays else None

    def _probing(self, guard: Guard, streams: Sequence[Stream], rooms: Sequence[int], plain) -> tuple[int, ...]:
        """A single draft of the stream that was tried longest ago, a new one first, when its time has come."""
        able = [i for i, room in enumerate(rooms) if room]
        if not able or not guard.probes.due():
            return (0,) * len(streams)
        chosen = min(able, key=lambda i: self._lanes[streams[i].order].probed)
        self._probe = streams[chosen].order
        return tuple(int(i == chosen) for i in range(len(streams)))

    def _offers(
        self, guard: Guard, streams: Sequence[Stream], heads: Sequence[int], rooms: Sequence[int]
    ) -> tuple[int, ...]:
        """Shares, and beyond them what the steps of the longest chain give for nothing; now and then one step more."""
        deepest = max(heads)
        depths = [
            min(room, deepest, count + self._settings.draft_slack) if count else 0
            for count, room in zip(heads, rooms, strict=True)
        ]
        if guard.deeper >= self._settings.probe_every:
            guard.deeper = 0
            longest = heads.index(deepest)
            depths[longest] = min(rooms[longest], deepest + 1)
            self._deeper = streams[longest].order
        return tuple(depths)

    def _offer(self, stream: Stream, alone: bool) -> Window:
        room = self._room(stream)
        if stream.forced:
            forced = stream.forced[: min(WINDOW_ROWS, stream.room) - 1]
            return Window(stream.order, "forced", forced, len(forced))
        copied = self._lanes[stream.order].copier.offer(room, alone) if room else ()
        if copied:
            return Window(stream.order, "copy", copied)
        held = stream.held[:room]
        return Window(stream.order, "head" if held else "plain", held, chances=stream.chances[: len(held)])

    def _shares(self, streams: Sequence[Stream], offers: Sequence[Window]) -> tuple[list[int], Sequence[int] | None]:
        if not self.costs.known:
            return [len(offer.offered) if offer.source == "head" else offer.tested for offer in offers], None
        chains = [self._chain(offer) for offer in offers]
        heads, steps = self._head
        price = self._price(len(streams))
        spent = self.costs.head_ms(heads, steps)
        best, plain = allocate(chains, lambda drafts, *_: price(drafts, 0, 0) + spent, self._spare_ms(self._guard(len(streams)), len(streams)))
        counts = list(best.counts)
        margin = 1.0 if steps else self._settings.plain_margin  # drafts that are made have been paid for
        if best.rate < margin * plain.rate:
            counts = [0] * len(counts)
        for i, offer in enumerate(offers):
            if offer.source == "forced":
                counts[i] = offer.tested
            if offer.source == "copy" and counts[i] < self._settings.copy_least:
                counts[i] = 0
            if offer.source == "head" and (offer.order == self._probe or not self._settings.plain_guard):
                counts[i] = max(counts[i], 1)
            if offer.source == "head" and offer.order in self._least:
                counts[i] = max(counts[i], min(self._least[offer.order], len(offer.offered)))
            if offer.source == "head" and offer.order == self._deeper:
                counts[i] = len(offer.offered)
        kept = all(c == b for c, b, o in zip(counts, best.counts, offers, strict=True) if o.source != "forced")
        return counts, best.order if kept else None

    def _chain(self, offer: Window) -> Chain:
        if offer.source == "copy":
            return Chain(self._lanes[offer.order].copier.chances(len(offer.offered)), head=False)
        if offer.source == "head":
            return Chain(self._acceptance.landing(offer.order, len(offer.offered), offer.chances))
        return Chain(fixed=offer.tested)

    def _note_outcome(self, outcome: Outcome, guard: Guard) -> None:
        window, hits = outcome.window, outcome.hits()
        lane = self._lanes.get(window.order)
        if lane is None or not hits:
            return
        if window.source == "copy":
            lane.copier.note(hits, window.tested, whole=window.tested == len(window.offered))
            for hit in hits:
                self._copy_chance.note(hit, self._settings.server_rate)
        if window.source == "head":
            lane.probed = self._round
            expected = self._acceptance.chain(window.order, 1)[0] >= NEWS
            self._acceptance.note(window.order, hits, window.chances)
            if window.order == self._probe:
                guard.probes.landed() if hits[0] and not expected else guard.probes.failed()
