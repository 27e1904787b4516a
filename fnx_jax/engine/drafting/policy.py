"""Host side: decides, round by round, how deep lanes draft and which drafts are tested. No device, no clock.

A round commits one token a lane and those of its drafts that land. Drafts are added while the tokens to expect for a
millisecond grow, and while what they may lose is covered by what drafts have gained (ledger.py). A round without any
competes. Where it wins, drafts that a little more luck would make pay are tried while they are covered, and single ones
at growing distances for ever. What is learnt of costs and of drafts outlives the streams.
Read next: allocate.py, ledger.py, guard.py, lanes.py, layout.py.
"""

import math
from collections.abc import Sequence

from fnx_jax.engine.drafting.allocate import Chain, Price, Share, allocate
from fnx_jax.engine.drafting.costs import Costs
from fnx_jax.engine.drafting.guard import Guard, Spent
from fnx_jax.engine.drafting.lanes import Lanes
from fnx_jax.engine.drafting.layout import lay_out
from fnx_jax.engine.drafting.plan import DraftCall, Plan, head_counts, no_drafts, tested
from fnx_jax.engine.drafting.settings import DraftSettings
from fnx_jax.engine.drafting.streams import Outcome, Stream, Window

LARGE_GAIN = 1.5
"""Drafts that promise so many times the plain rate need no newer time of a plain round."""
UNTIMED = 4
"""Plain rounds to wait for one whose time is that of a plain round: one may hold prompt rows, for long."""
NEWS = 0.6
"""A probe that lands is news below this chance. Above it, it was known that drafts land, and that they do not pay."""

SETTLED = 16
"""Rounds that a decision for plain rounds holds at most while nothing is learnt: thinking takes time too."""
HOPED = 0.5
"""Of what drafts may lose, what those may that are hoped to pay. The rest is for probes and for better times."""


class DraftPolicy:
    """A Drafter (see streams.py) that learns acceptance by lane, costs by width, and drafts where that pays.

    settings: what it does not learn. draft_depth: drafts that the head can chain at most, 0 without a head.
    costs: what is known of times, of an earlier run perhaps; none by default.
    """

    def __init__(self, settings: DraftSettings, draft_depth: int, costs: Costs | None = None):
        self._settings = settings
        self._depth = min(settings.depth_most, draft_depth)
        self.costs = costs or Costs(settings.cost_rate)
        self._lanes = Lanes(settings, self._depth)
        self._guards: dict[int, Guard] = {}
        self._plan, self._call = Plan(()), DraftCall()
        self._settled: tuple[tuple[int, ...], int] = ((), 0)

    @property
    def confidence(self) -> float:
        """Where the head shall end a chain (see DraftPlan)."""
        return self._settings.confidence

    def depths(self, streams: Sequence[Stream]) -> tuple[int, ...]:
        """Drafts that each stream's head shall make now. Streams: those that the next round will decode."""
        self._plan, self._call = no_drafts(len(streams)), DraftCall()
        if not streams or not self._depth:
            return self._plan.depths
        guard = self._guard(len(streams))
        if self._settles(streams):
            self._plan = self._probed(guard, streams) if guard.allows() else self._plan
            return self._plan.depths
        self._lanes.see(streams)
        if not self.costs.plain_known(len(streams)) and guard.untimed < UNTIMED:
            guard.untimed += 1  # a plain round first: all else is judged by it
        elif not self.costs.known:
            self._plan = Plan(tuple(self._lanes.untimed(stream) for stream in streams))
        else:
            self._plan = self._planned(guard, streams)
        return self._plan.depths

    def windows(self, streams: Sequence[Stream], rows: int, row_tile: int) -> list[Window]:
        """One window for each stream, of drafts that are held or copied, in at most `rows` rows.

        Raises: ValueError where the streams outnumber the rows.
        """
        if len(streams) > rows:
            raise ValueError(f"windows: {len(streams)} streams, {rows} rows")
        self._lanes.see(streams)
        offers = [self._lanes.offer(stream, len(streams) == 1) for stream in streams]
        if not any(offer.offered for offer in offers):
            return offers
        rooms = [stream.room for stream in streams]
        if not self.costs.known:
            counts = [len(offer.offered) if offer.source == "head" else offer.tested for offer in offers]
            return lay_out(offers, counts, rooms, rows, row_tile)
        best = self._share(offers)
        counts = tested(best.counts, offers, self._plan.least, self._settings.copy_least)
        return lay_out(offers, counts, rooms, rows, row_tile, best.order if counts == list(best.counts) else None)

    def note_round(self, outcomes: Sequence[Outcome], ms: float, prompt_rows: int = 0) -> None:
        """Takes what a round committed. ms: its wall time, the draft call not included."""
        if not outcomes:
            return
        lanes, rows = len(outcomes), sum(1 + outcome.window.tested for outcome in outcomes)
        guard = self._guard(lanes)
        first = self._lanes.note_round(outcomes)
        if any(outcome.window.offered for outcome in outcomes):
            self._settled = (), 0
            self._judge_probe(guard, outcomes)
        # Else the time is not that of windows alone, or the clock is too coarse to tell it.
        alone = not prompt_rows and not first and ms > 0
        if rows == lanes and not self._call.ms and not self._settings.rate_guard:
            guard.ledger.book(0.0, 1.0, 1.0)  # as long as a plain round takes
        elif self.costs.known:
            window_ms = self.costs.clip_round(lanes, rows, ms) if alone else self.costs.round_ms(lanes, rows)
            forced = sum(outcome.window.tested for outcome in outcomes if outcome.window.source == "forced")
            tokens = sum(len(outcome.committed) for outcome in outcomes)
            spent = Spent(lanes, tokens, rows - lanes - forced, window_ms, self._call.ms)
            guard.note(spent, self.costs.round_ms(lanes, lanes), measured=alone and self._plan.probe is None)
        if alone:
            self.costs.note_round(lanes, rows, ms)

    def note_draft(self, lanes: int, steps: int, ms: float) -> None:
        """Takes the wall time of a draft call. lanes: that it drafted for. steps: drafts of the longest chain."""
        if steps and lanes:
            self.costs.note_head(lanes, steps, ms)
            self._call = DraftCall(lanes, steps, self.costs.head_ms(lanes, steps))

    def forget(self, order: int) -> None:
        """A stream has ended."""
        self._lanes.forget(order)

    def _guard(self, lanes: int) -> Guard:
        if lanes not in self._guards:
            self._guards[lanes] = Guard(self._settings)
        return self._guards[lanes]

    def _price(self, lanes: int) -> Price:
        costs = self.costs
        return lambda drafts, heads, deepest: costs.round_ms(lanes, lanes + drafts) + costs.head_ms(heads, deepest)

    def _spare_ms(self, lanes: int) -> float:
        """What the drafts of a round may lose."""
        plain_ms = self.costs.round_ms(lanes, lanes)
        return self._guard(lanes).ledger.spare_ms(plain_ms) if self._settings.plain_guard else math.inf

    def _best(self, chains: Sequence[Chain], part: float = 1.0) -> tuple[Share, Share]:
        return allocate(chains, self._price(len(chains)), part * self._spare_ms(len(chains)))

    def _pays(self, best: Share, plain: Share) -> bool:
        return best.rate >= self._settings.plain_margin * plain.rate

    def _settles(self, streams: Sequence[Stream]) -> bool:
        """Whether the last decision was for plain rounds, and still holds for these streams. Counts a round."""
        orders, left = self._settled
        holds = left > 0 and orders == tuple(stream.order for stream in streams)
        self._settled = orders, left - 1 if holds else 0
        return holds

    def _planned(self, guard: Guard, streams: Sequence[Stream]) -> Plan:
        if self._settings.plain_guard and not guard.allows():
            return no_drafts(len(streams))
        orders = tuple(stream.order for stream in streams)
        chains = [self._lanes.planned(stream) for stream in streams]
        best, plain = self._best(chains)
        heads = head_counts(best, chains)
        if not self._settings.plain_guard:
            heads = [
                max(count, int(chain.head and len(chain.chances) > 0))
                for count, chain in zip(heads, chains, strict=True)
            ]
            least = {stream.order: min(1, count) for stream, count in zip(streams, heads, strict=True)}
            return self._drafted(guard, streams, heads, least)
        if self._pays(best, plain):
            guard.probes.reset()
            if best.rate < LARGE_GAIN * plain.rate and guard.stale():
                return no_drafts(len(streams))
            return self._drafted(guard, streams, heads, {})
        chains = [self._lanes.planned(stream, self._settings.hope) for stream in streams]
        hoped, _ = self._best(chains, HOPED)
        heads = head_counts(hoped, chains)
        if any(heads) and self._pays(hoped, plain):
            return Plan(heads, dict(zip(orders, heads, strict=True)))
        self._settled = orders, SETTLED - 1
        return self._probed(guard, streams)

    def _drafted(self, guard: Guard, streams: Sequence[Stream], heads: Sequence[int], least: dict[int, int]) -> Plan:
        """Shares, and beyond them what the steps of the longest chain give for nothing; now and then one step more."""
        deepest = max(heads)
        if not deepest:
            return no_drafts(len(streams))
        rooms = [min(self._lanes.room(stream), self._depth) for stream in streams]
        depths = [
            min(room, deepest, count + self._settings.draft_slack) if count else 0
            for count, room in zip(heads, rooms, strict=True)
        ]
        if guard.deepens():
            longest = heads.index(deepest)
            depths[longest] = min(rooms[longest], deepest + 1)
            least = {**least, streams[longest].order: depths[longest]}
        return Plan(tuple(depths), least)

    def _probed(self, guard: Guard, streams: Sequence[Stream]) -> Plan:
        """A single draft of the stream that was tried longest ago, a new one first, when its time has come."""
        lanes = len(streams)
        if not guard.probes.due(lambda: self._covers_probe(lanes)):
            return no_drafts(lanes)
        able = [i for i, stream in enumerate(streams) if self._lanes.room(stream)]
        if not able:
            return no_drafts(lanes)
        chosen = min(able, key=lambda i: self._lanes.tried(streams[i].order))
        order = streams[chosen].order
        return Plan(tuple(int(i == chosen) for i in range(lanes)), {order: 1}, (order, self._lanes.chance(order)))

    def _covers_probe(self, lanes: int) -> bool:
        price = self._price(lanes)
        return price(1, 1, 1) - price(0, 0, 0) <= self._spare_ms(lanes)

    def _share(self, offers: Sequence[Window]) -> Share:
        """The best of what is offered; the draft call has been paid for."""
        lanes, price, spent = len(offers), self._price(len(offers)), self._call.ms
        best, plain = allocate(
            [self._lanes.chain(offer) for offer in offers],
            lambda drafts, *_: price(drafts, 0, 0) + spent,
            max(0.0, self._spare_ms(lanes) - spent),
        )
        return best if spent or self._pays(best, plain) else plain

    def _judge_probe(self, guard: Guard, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            hits = outcome.hits()
            if (
                self._plan.probe
                and outcome.window.order == self._plan.probe[0]
                and outcome.window.source == "head"
                and hits
            ):
                guard.probes.landed() if hits[0] and self._plan.probe[1] < NEWS else guard.probes.failed()
