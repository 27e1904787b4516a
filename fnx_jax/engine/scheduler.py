"""Host side: requests to lanes, lanes to rounds, rounds to emissions. No thread and no device; one caller at a time.

A request waits in order of arrival until a lane is free and the pages of its whole window (prompt and longest reply)
are; it holds both until its last emission, so that a reply that has begun never lacks room. Read next: loop.py.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable

from fnx_jax.engine.conclude import conclude, finish
from fnx_jax.engine.drafting.streams import Drafter
from fnx_jax.engine.drafts import LaneDrafts
from fnx_jax.engine.ending import End
from fnx_jax.engine.lane import Lane, Waiting
from fnx_jax.engine.limits import EngineConfig, check_request, reply_limit
from fnx_jax.engine.pages import PageError, PagePool, PageTable
from fnx_jax.engine.plan import Drafts, Planned, assemble, prompt_order, prompt_pieces, windows
from fnx_jax.engine.prompt_cache.reuse import Reuse, Start
from fnx_jax.engine.records import RoundLog, RoundRecord, record_round
from fnx_jax.engine.request import Emission, EngineError, Finish, QueueFull, Request, Timing
from fnx_jax.engine.stall import RoundTimes, prompt_rows_most
from fnx_jax.engine.status import EngineStatus, Totals
from fnx_jax.engine.steps import DraftOutput, DraftPlan, ReuseError, RoundOutput, Steps


class Scheduler:
    """Waiting requests, lanes and pages of one device.

    steps: read for its limits, and told what to keep and to restore. on_record: is given each round's record.
    drafts: proposes drafts, in place of the drafter. drafter: decides on drafts of the draft head and copies; None:
    there are none. clock: seconds, for timings.
    """

    def __init__(
        self,
        steps: Steps,
        config: EngineConfig | None = None,
        *,
        on_record: Callable[[RoundRecord], None] | None = None,
        drafts: Drafts | None = None,
        drafter: Drafter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if not 1 <= steps.lanes <= steps.max_rows:
            raise ValueError(f"Scheduler: {steps.lanes} lanes, must be from 1 to the {steps.max_rows} rows of a round")
        self.config = config or EngineConfig()
        self.pool = PagePool(steps.pages, steps.page)
        self.records = RoundLog(self.config.records, on_record)
        self._steps, self._drafts, self._clock = steps, drafts, clock
        self._reuse = Reuse(
            steps,
            self.pool,
            self.config.prompt_cache_min_tokens,
            self.config.prompt_cache_host_bytes,
            self.config.prompt_cache_disk,
        )
        self._lane_drafts: LaneDrafts | None = None
        if drafter is not None and drafts is None:
            self._lane_drafts = LaneDrafts(drafter, steps.draft_depth, steps.row_tile)
        self._table = PageTable(steps.lanes, self.pool.needed(steps.context))
        self._waiting: deque[Waiting] = deque()
        self._lanes: list[Lane | None] = [None] * steps.lanes
        self._admitted = 0
        self._times = RoundTimes()
        self._totals = Totals()

    def has_work(self) -> bool:
        """Whether any request is waiting or has a lane."""
        return bool(self._waiting) or any(self._lanes)

    def check(self, request: Request) -> None:
        """Raises EngineError for a request that could never be served. Reads nothing that changes."""
        check_request(request, self._steps)

    @property
    def places(self) -> int:
        """Unfinished requests there may be: one a lane, and those that the queue holds."""
        return len(self._lanes) + self.config.max_queue

    def submit(self, request: Request) -> None:
        """Queues a request. Raises EngineError for a bad one, QueueFull where the queue is at its limit."""
        self.check(request)
        live = self.live()
        if request.id in live:
            raise EngineError(f"id: a request {request.id!r} is being served")
        if len(live) >= self.places:
            raise QueueFull(f"queue: {len(live)} requests are waiting or being served, {self.places} at most")
        self.enqueue(Waiting(request, self._clock()))

    def enqueue(self, waiting: Waiting) -> None:
        """Queues a request that was checked."""
        self._waiting.append(waiting)

    def live(self) -> list[str]:
        """Returns the ids of all requests that are queued or admitted, queued ones first."""
        return [waiting.request.id for waiting in self._waiting] + [lane.request.id for lane in self._running()]

    def queued(self) -> list[str]:
        """Returns the ids of the requests without a lane, in order of arrival."""
        return [waiting.request.id for waiting in self._waiting]

    def admit(self) -> list[Emission]:
        """Gives lanes and pages to waiting requests, in order, while both are there.

        Returns: the last emission of each request that could not be started; the others are none the worse.
        Raises: what the device raises where its lanes are lost.
        """
        failed = []
        while self._waiting and None in self._lanes:
            waiting = self._waiting[0]
            start = self._reuse.find(waiting.request, self._pages(waiting))
            if start is None:
                break
            try:
                pages = self._reuse.take(start, self._lanes.index(None))
            except ReuseError:
                continue  # the state is gone: from an earlier one, or from row 0
            self._waiting.popleft()
            try:
                self._start(waiting, start, pages)
            except Exception as error:
                failed.append(self._drop(waiting, End("error", error=f"not started: {type(error).__name__}: {error}")))
        return failed

    def plan(self) -> Planned | None:
        """Builds the next round; None where there is nothing to do.

        Raises: PageError where requests wait for pages that no lane holds.
        """
        if self._waiting and not self._running():
            raise PageError(f"{len(self._waiting)} requests wait, no lane is taken, {self.pool.used} pages are held")
        decoding = self._decoding()
        filling = [lane for lane in self._running() if lane.filling]
        kept_free = self._steps.row_tile if filling else 0  # drafts may not crowd out prompts
        rows = max(len(decoding), self._steps.max_rows - kept_free)
        drafts = self._drafts
        if self._lane_drafts is not None:
            decoding, drafts = self._lane_drafts.propose(decoding, rows)
        segments = windows(decoding, rows, self._steps.row_tile, drafts)
        first = sum(len(segment.tokens) for segment in segments)
        most = prompt_rows_most(self.config, self._times, bool(decoding), self._steps.row_tile)
        rows = min(self._steps.max_rows - first, most)
        pieces = prompt_pieces(prompt_order(filling, self.config.passes), rows, first, self._steps.row_tile)
        served = {piece.lane.index for piece in pieces}
        for lane in filling:
            lane.passed = 0 if lane.index in served else lane.passed + 1
        segments += pieces
        return assemble(segments, self._table.copy(), self._steps) if segments else None

    def conclude(self, planned: Planned, output: RoundOutput, seconds: float) -> list[Emission]:
        """Takes a round's results; frees the lanes and pages of the replies that end.

        Args:
          seconds: wall time from the plan to the results.
        Raises: ValueError where the output does not answer the plan.
        """
        emissions = conclude(planned, output, self._clock())
        prompt_rows = sum(len(segment.tokens) for segment in planned.segments if segment.prompt)
        rows = len(planned.plan.token_B)
        if prompt_rows < rows:
            self._times.note(prompt_rows, seconds)
        record = record_round(self._totals.rounds, planned.segments, emissions, self._steps.row_tile, seconds)
        self._totals.note_round(rows, prompt_rows, emissions)
        if self._lane_drafts is not None:
            self._lane_drafts.note_round(planned.segments, emissions, seconds)
        ended = {emission.request_id: emission.finish.reason for emission in emissions if emission.finish}
        for segment in planned.segments:
            if segment.prompt and ended.get(segment.lane.request.id) != "error":
                self._reuse.keep_prompt(segment.lane, segment.open)
        for lane in self._running():
            if (reason := ended.get(lane.request.id)) is not None:
                self._release(lane, whole=reason in ("stop", "length"))
        self.records.append(record)
        return emissions

    def plan_drafts(self) -> DraftPlan | None:
        """Asks for drafts for the lanes that the next round will decode; None where none is wanted."""
        decoding = self._decoding()
        if self._lane_drafts is None or not decoding:
            return None
        return self._lane_drafts.plan(decoding, self._table.copy())

    def take_drafts(self, plan: DraftPlan, output: DraftOutput, seconds: float) -> None:
        """Gives the lanes their drafts. Args: seconds: wall time of the call."""
        if self._lane_drafts is not None:
            self._lane_drafts.hold(self._decoding(), plan, output, seconds)

    def lose_drafts(self, plan: DraftPlan, error: Exception, seconds: float) -> None:
        """Notes that a call for drafts failed. Args: seconds: wall time of the call."""
        if self._lane_drafts is not None:
            self._lane_drafts.lose(plan, error, seconds)

    def cancel(self, ids: Collection[str]) -> list[Emission]:
        """Ends requests with "abort", wherever they are; unknown ids are none. Only between rounds.

        Returns: the last emission of each.
        """
        return self._end(ids, End("abort"))

    def fail(self, message: str) -> list[Emission]:
        """Ends every request with an error. Returns: the last emission of each.

        What is kept on the device is not resumed any more: it may be lost as well.
        """
        self._steps.owner = None
        return self._end(self.live(), End("error", error=message))

    def status(self) -> EngineStatus:
        """Returns the numbers as they are now."""
        lanes = self._running()
        filling = sum(lane.filling for lane in lanes)
        return EngineStatus(
            lanes=len(self._lanes),
            running=len(lanes) - filling,
            filling=filling,
            waiting=len(self._waiting),
            pages=self.pool.pages,
            pages_used=len(self._reuse.device.held),
            cache=self._reuse.status(),
            **self._totals.told(),
        )

    def close(self, orderly: bool) -> None:
        """Ends it, once it has no work. orderly: the devices are well, and what they keep may go to files."""
        self._reuse.close(orderly)

    def verify(self) -> None:
        """Raises PageError unless the lanes in use and the kept states explain every page reference."""
        self.pool.check(holder.pages for holder in (*self._running(), *self._reuse.device.entries))

    def _running(self) -> list[Lane]:
        return [lane for lane in self._lanes if lane is not None]

    def _decoding(self) -> list[Lane]:
        return sorted((lane for lane in self._running() if not lane.filling), key=lambda lane: lane.order)

    def _pages(self, waiting: Waiting) -> int:
        request = waiting.request
        return self.pool.needed(len(request.prompt) + reply_limit(request, self._steps.context))

    def _start(self, waiting: Waiting, start: Start, pages: tuple[int, ...]) -> None:
        index = self._lanes.index(None)
        try:
            limit = reply_limit(waiting.request, self._steps.context)
            lane = Lane(index, self._admitted, waiting, pages, limit, self._steps.vocabulary, self._clock())
        except BaseException:
            self.pool.release(pages)
            raise
        self._table.assign(index, pages)
        self._lanes[index] = lane
        self._admitted += 1
        self._reuse.begin(lane, start)
        self._note_held()

    def _release(self, lane: Lane, whole: bool = False) -> None:
        self._reuse.end(lane, whole)
        self._lanes[lane.index] = None
        if self._lane_drafts is not None:
            self._lane_drafts.forget(lane)
        self._table.clear(lane.index)
        self.pool.release(lane.pages)
        self._note_held()

    def _note_held(self) -> None:
        self._reuse.device.held = {page for lane in self._running() for page in lane.pages}

    def _drop(self, waiting: Waiting, end: End) -> Emission:
        self._totals.finished[end.reason] += 1
        timing = Timing(queue_s=self._clock() - waiting.submitted_s)
        return Emission(waiting.request.id, finish=Finish(end.reason, error=end.error, timing=timing))

    def _end(self, ids: Iterable[str], end: End) -> list[Emission]:
        wanted = set(ids)
        dropped = [waiting for waiting in self._waiting if waiting.request.id in wanted]
        self._waiting = deque(waiting for waiting in self._waiting if waiting.request.id not in wanted)
        emissions = [self._drop(waiting, end) for waiting in dropped]
        for lane in self._running():
            if lane.request.id in wanted:
                self._release(lane)
                self._totals.finished[end.reason] += 1
                last = finish(lane, end, self._clock())
                emissions.append(Emission(lane.request.id, finish=last, cached_tokens=lane.cached))
        return emissions
