"""Host side: runs requests through an engine and keeps what an equality is about: tokens, and the bits of the logits.

Read next: compare.py.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from fnx_jax.engine.drafting.streams import Drafter
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.plan import Drafts
from fnx_jax.engine.records import RoundRecord
from fnx_jax.engine.request import Emission, Request
from fnx_jax.engine.steps import DraftOutput, DraftPlan, Held, RoundOutput, RoundPlan, Steps
from fnx_jax.lanes.rounds import DeviceSteps
from fnx_jax.lanes.tiles import cut

ALL_RECORDS = 1 << 30
Past = Callable[[Sequence[Request]], Sequence[Request]]
"""Given a group of requests, what an engine serves before them."""


def no_past(requests: Sequence[Request]) -> Sequence[Request]:
    """Nothing: a new engine."""
    return ()


@dataclass(frozen=True)
class Row:
    """Raw logits of one row. digest: of their bits. best: likeliest id. margin: best logit less the second best."""

    digest: str
    best: int
    margin: float


@dataclass(frozen=True)
class Reply:
    """One request's reply. prompt: length of its prompt. finish: why it ended, with the message of an error.

    cached: rows of the prompt that were not run.
    rows: by the position of the token they decide: reply positions, and prompt positions where those were scored.
    """

    prompt: int
    tokens: tuple[int, ...]
    finish: str
    rows: Mapping[int, Row]
    cached: int = 0


@dataclass(frozen=True)
class Recording:
    """Replies by request id, and the records of the rounds that made them."""

    replies: Mapping[str, Reply]
    rounds: tuple[RoundRecord, ...]


def describe_row(logits_V: Float[np.ndarray, " V"]) -> Row:
    """Digests one row of raw logits."""
    second, first = np.partition(logits_V, -2)[-2:]
    bits = hashlib.blake2b(logits_V.tobytes(), digest_size=16).hexdigest()
    return Row(digest=bits, best=int(np.argmax(logits_V)), margin=float(first - second))


def digest(recording: Recording) -> str:
    """Sixteen hex digits over every reply's tokens and the bits of its logits."""
    held = [
        (name, reply.tokens, [(at, row.digest) for at, row in reply.rows.items()])
        for name, reply in recording.replies.items()
    ]
    return hashlib.blake2b(repr(held).encode(), digest_size=8).hexdigest()


class Recorder:
    """A DeviceSteps whose rounds are noted: `rounds` has, a round, a `Row` by (lane, position of the token decided)."""

    def __init__(self, steps: DeviceSteps):
        self.lanes, self.row_tile, self.max_rows = steps.lanes, steps.row_tile, steps.max_rows
        self.context, self.page, self.pages = steps.context, steps.page, steps.pages
        self.vocabulary, self.history = steps.vocabulary, steps.history
        self.draft_depth = steps.draft_depth
        self.owner: object = None
        self.slots, self.state_bytes, self.page_bytes = steps.slots, steps.state_bytes, steps.page_bytes
        self.rounds: list[dict[tuple[int, int], Row]] = []
        self._steps = steps

    def round(self, plan: RoundPlan) -> RoundOutput:
        """Runs the round as it is, and reads every row of logits that it draws from or scores."""
        heads: list[Any] = []
        with _heads_seen(self._steps, heads):
            output = self._steps.round(plan)
        rows: dict[tuple[int, int], Row] = {}
        tiles = [tile for tile in cut(plan) if tile.draws or tile.scores]
        for tile, logits_BV in zip(tiles, map(np.asarray, heads), strict=True):
            for at in (*tile.draws, *tile.scores):
                key = int(plan.lane_B[at.row]), int(plan.position_B[at.row]) + 1
                rows[key] = describe_row(logits_BV[tile.place(at.row)])
        self.rounds.append(rows)
        return output

    def draft(self, plan: DraftPlan) -> DraftOutput:
        """Drafts as it is."""
        return self._steps.draft(plan)

    def keep(self, lane: int, length: int, slot: int) -> None:
        """Keeps as it is."""
        self._steps.keep(lane, length, slot)

    def restore(self, slot: int, lane: int) -> None:
        """Restores as it is."""
        self._steps.restore(slot, lane)

    def spill(self, slot: int, pages: tuple[int, ...]) -> Held:
        """Copies as it is."""
        return self._steps.spill(slot, pages)

    def refill(self, held: Held, slot: int, pages: tuple[int, ...]) -> None:
        """Copies as it is."""
        self._steps.refill(held, slot, pages)

    def copy_page(self, source: int, target: int) -> None:
        """Copies as it is."""
        self._steps.copy_page(source, target)


@contextmanager
def _heads_seen(steps: DeviceSteps, seen: list[Any]) -> Iterator[None]:
    programs = steps.programs

    def logits(params: Any, streams: Any) -> Any:
        slices = programs.logits(params, streams)
        seen.append(programs.whole(slices))
        return slices

    steps.programs = replace(programs, logits=logits)
    try:
        yield
    finally:
        steps.programs = programs


def record(
    steps: DeviceSteps,
    requests: Sequence[Request],
    config: EngineConfig | None = None,
    drafts: Drafts | None = None,
    streams: int | None = None,
    drafter: Drafter | None = None,
    past: Past = no_past,
) -> Recording:
    """Serves requests, `streams` of them together (all, where None), group after group, each in a new engine.

    Args: past: what an engine serves before a group, off the record.
    Raises: EngineError for a request that cannot be served; whatever the device raised.
    """
    replies: dict[str, Reply] = {}
    rounds: list[RoundRecord] = []
    size = streams or max(1, len(requests))
    for first in range(0, len(requests), size):
        recorder = Recorder(steps)
        group = requests[first : first + size]
        emissions, records = serve(recorder, group, config, drafts, drafter, past(group))
        rows = _rows_by_request(recorder.rounds[-len(records) :], records)
        replies |= {r.id: _reply(r, emissions[r.id], rows.get(r.id, {})) for r in group}
        rounds += records
    return Recording(replies, tuple(rounds))


def serve(
    steps: Steps,
    requests: Sequence[Request],
    config: EngineConfig | None,
    drafts: Drafts | None,
    drafter: Drafter | None = None,
    before: Sequence[Request] = (),
) -> tuple[dict[str, list[Emission]], list[RoundRecord]]:
    """Emissions by request, and the record of every round after those of `before`. Raises: as `record`."""
    engine = Engine(steps, replace(config or EngineConfig(), records=ALL_RECORDS), drafts=drafts, drafter=drafter)
    engine.run(before)
    skipped = len(list(engine.records))
    emissions = engine.run(requests) if engine.failed is None else {}
    if engine.failed is not None:
        raise engine.failed
    return emissions, list(engine.records)[skipped:]


def _rows_by_request(
    rounds: Sequence[Mapping[tuple[int, int], Row]], records: Sequence[RoundRecord]
) -> dict[str, dict[int, Row]]:
    """The newest row of each position: an earlier one stood behind a draft that was not taken."""
    found: dict[str, dict[int, Row]] = {}
    for rows, round_record in zip(rounds, records, strict=True):
        owner = {lane.lane: lane.request_id for lane in round_record.lanes}
        for (lane, position), row in rows.items():
            found.setdefault(owner[lane], {})[position] = row
    return found


def _reply(request: Request, emissions: Sequence[Emission], rows: Mapping[int, Row]) -> Reply:
    tokens = tuple(token for emission in emissions for token in emission.tokens)
    end = len(request.prompt) + len(tokens)
    finish = emissions[-1].finish
    words = "" if finish is None else f"{finish.reason} {finish.error or ''}".strip()
    kept = {position: rows[position] for position in sorted(rows) if position < end}
    cached = emissions[-1].cached_tokens
    return Reply(prompt=len(request.prompt), tokens=tokens, finish=words, rows=kept, cached=cached)
