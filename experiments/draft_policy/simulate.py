"""Host side: serves made-up replies with a drafter that decides and a machine that takes its time.

The drafter's clock errs; what it costs is counted in true time. Everything follows from the seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiments.draft_policy.machine import ROW_TILE, Clock, Machine
from experiments.draft_policy.text import Replies, Reply, Text
from fnx_jax.engine.drafting.settings import WINDOW_ROWS
from fnx_jax.engine.drafting.streams import Drafter, Outcome, Stream, Window

FIRST_ROUND = 2.0
"""How many times its time a round takes in which a lane goes from its prompt to its reply."""


@dataclass(frozen=True)
class Workload:
    """streams: at any time; a reply that ends is followed by another. reply: tokens of each. text: what they are."""

    streams: int
    text: Text
    machine: Machine
    reply: int = 100_000


@dataclass(frozen=True)
class Result:
    """tokens: committed. ms: true time. drafted: rounds with a draft under test, of `rounds`. landed: of `tested`."""

    tokens: int
    ms: float
    rounds: int
    drafted: int
    tested: int
    landed: int

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return 1000 * self.tokens / self.ms


@dataclass(frozen=True)
class Trace:
    """What happens whoever drafts: a workload's replies, and how many tokens are served of it, all streams together."""

    workload: Workload
    replies: Replies
    tokens: int


def make_trace(workload: Workload, seed: int, tokens: int) -> Trace:
    """The trace of a seed."""
    return Trace(workload, Replies(workload.text, min(workload.reply, tokens + WINDOW_ROWS), seed), tokens)


def simulate(trace: Trace, drafter: Drafter, clock: Clock, confidence: float = 0.0) -> Result:
    """Serves a trace. The drafter sees what the clock reads; the result counts true time."""
    return _Server(trace, drafter, clock, confidence).run()


class _Server:
    def __init__(self, trace: Trace, drafter: Drafter, clock: Clock, confidence: float):
        self._trace, self._machine, self._drafter = trace, trace.workload.machine, drafter
        self._clock, self._confidence = clock, confidence
        self._orders = 0
        self._fresh: set[int] = set()
        self._replies: dict[int, Reply] = {}
        self._tokens: dict[int, list[int]] = {}
        self._streams = [self._start() for _ in range(trace.workload.streams)]
        self._result = Result(0, 0.0, 0, 0, 0, 0)

    def run(self) -> Result:
        while self._result.tokens < self._trace.tokens:
            self._round()
            self._draft()
        return self._result

    def _start(self) -> Stream:
        order, self._orders = self._orders, self._orders + 1
        reply = self._replies[order] = self._trace.replies[order]
        self._tokens[order] = [*reply.prompt, reply.tokens[0]]
        self._fresh.add(order)
        return Stream(order, self._tokens[order], len(reply.tokens) - 1)

    def _round(self) -> None:
        lanes = len(self._streams)
        laid = {w.order: w for w in self._drafter.windows(self._streams, lanes * WINDOW_ROWS, ROW_TILE)}
        windows = [laid[stream.order] for stream in self._streams]
        outcomes = [self._commit(s, w) for s, w in zip(self._streams, windows, strict=True)]
        tested, landed = sum(w.tested for w in windows), sum(len(o.committed) - 1 for o in outcomes)
        ms = self._machine.round_ms(lanes, lanes + tested)
        seen_ms = self._clock.read(ms * (FIRST_ROUND if self._fresh else 1.0))
        self._drafter.note_round(outcomes, seen_ms)
        self._fresh.clear()
        self._streams = [self._go_on(stream, outcome) for stream, outcome in zip(self._streams, outcomes, strict=True)]
        was = self._result
        self._result = Result(
            was.tokens + lanes + landed,
            was.ms + ms,
            was.rounds + 1,
            was.drafted + (tested > 0),
            was.tested + tested,
            was.landed + landed,
        )

    def _commit(self, stream: Stream, window: Window) -> Outcome:
        reply = self._replies[stream.order]
        place = len(reply.tokens) - stream.room
        landed = 0
        while landed < window.tested and window.offered[landed] == reply.tokens[place + landed]:
            landed += 1
        return Outcome(window, tuple(reply.tokens[place : place + landed + 1]))

    def _go_on(self, stream: Stream, outcome: Outcome) -> Stream:
        room = stream.room - len(outcome.committed)
        if room < 1:
            self._drafter.forget(stream.order)
            del self._replies[stream.order], self._tokens[stream.order]
            return self._start()
        self._tokens[stream.order].extend(outcome.committed)
        return replace(stream, room=room, held=(), chances=())

    def _draft(self) -> None:
        depths = self._drafter.depths(self._streams)
        if not any(depths):
            return
        made = [self._chain(stream, depth) for stream, depth in zip(self._streams, depths, strict=True)]
        self._streams = [replace(s, held=held, chances=c) for s, (held, c) in zip(self._streams, made, strict=True)]
        lanes, steps = sum(depth > 0 for depth in depths), max(len(held) for held, _ in made)
        ms = self._machine.head_ms(lanes, steps)
        self._result = replace(self._result, ms=self._result.ms + ms)
        self._drafter.note_draft(lanes, steps, self._clock.read(ms))

    def _chain(self, stream: Stream, depth: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        reply = self._replies[stream.order]
        return reply.draft(len(reply.tokens) - stream.room, depth, self._confidence)
