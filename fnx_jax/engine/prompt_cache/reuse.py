"""Host side: between scheduler and kept states: where a prompt may start, when a state is kept, who gives way to whom.

Kept states give way to requests: a page that only they hold is as good as free. What goes wrong with them costs
prompts a new pass and nothing else. Read next: entries.py, marks.py.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from fnx_jax.engine.lane import Lane
from fnx_jax.engine.pages import PagePool
from fnx_jax.engine.prompt_cache.entries import Entries, Entry, Kind
from fnx_jax.engine.prompt_cache.host import Away, HostTier
from fnx_jax.engine.prompt_cache.marks import choose_marks
from fnx_jax.engine.prompt_cache.status import CacheStatus
from fnx_jax.engine.request import Request
from fnx_jax.engine.steps import ReuseError, Steps

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """Where a request may begin. total: pages that its lane will hold. entry: what it resumes, None for row 0.

    taken: pages at the front that it shares with the entry.
    """

    total: int
    entry: Entry | None = None
    taken: int = 0

    @property
    def length(self) -> int:
        """Rows that are there already."""
        return self.entry.length if self.entry is not None else 0


@dataclass
class Reuse:
    """The kept states of one scheduler.

    apart: least rows between kept states. host_bytes: for states that leave the devices.
    held: pages that lanes hold, whatever else does; the scheduler sets it.
    """

    steps: Steps
    pool: PagePool
    apart: int
    host_bytes: int = 0
    held: Collection[int] = ()
    entries: Entries = field(init=False)
    host: HostTier = field(init=False)
    _origins: dict[int, Entry] = field(default_factory=dict)
    _asked: tuple[Request, np.ndarray] | None = None
    _queries: int = 0
    _hits: int = 0
    _resumed: int = 0
    _saved: int = 0
    _returned: int = 0
    _failed: int = 0

    def __post_init__(self) -> None:
        self.entries = Entries(self.steps.slots, self.pool, self._spill)
        self.host = HostTier(self.host_bytes)

    def find(self, request: Request, total: int) -> Start | None:
        """Makes room for a request of `total` pages, and says where it may start. None where lanes hold too much."""
        self._own()
        self._bring_back(request)
        entry = self._match(request)
        if entry is not None:
            taken = self.pool.shareable(entry.length)
            if self._make_room(total - taken, entry):
                return Start(total, entry, taken)
        return Start(total) if self._make_room(total, None) else None

    def take(self, start: Start, lane: int) -> tuple[int, ...]:
        """Takes a lane's pages and restores what it starts from.

        Raises: ReuseError where that fails; the entry is gone then, and nothing was taken.
        """
        entry = start.entry
        own = self.pool.alloc(start.total - start.taken)
        if entry is None:
            return own
        shared = entry.pages[: start.taken]
        try:
            self.steps.copy_page(entry.pages[start.taken], own[0])
            self.steps.restore(entry.slot, lane)
        except BaseException as error:
            self.pool.release(own)
            if isinstance(error, ReuseError):
                self._note_failure("restored", error)
                self.entries.drop(entry)
            raise
        self.pool.share(shared)
        self.entries.resume(entry)
        return shared + own

    def begin(self, lane: Lane, start: Start) -> None:
        """Tells a lane where it starts, and where its prompt's pass has to stop."""
        request = lane.request
        lane.filled = lane.cached = start.length
        if self.entries.slots:
            agreed = self.entries.shared(self._prompt(request))
            lane.marks = choose_marks(request, start.length, agreed, self.apart)
            self._queries += len(request.prompt) if _asks(request) else 0
        self._hits += start.length
        if start.entry is not None:
            self._resumed += 1
            self._origins[lane.index] = start.entry

    def keep_prompt(self, lane: Lane) -> None:
        """Keeps a lane's state where it stands at a mark."""
        if (kind := lane.marks.get(lane.filled)) is not None:
            self._keep(lane, kind)

    def end(self, lane: Lane, whole: bool) -> None:
        """Keeps the state of a lane that is about to be freed, if its reply is `whole` and that is worth it."""
        origin = self._origins.pop(lane.index, None)
        new = lane.filled - max(lane.prompt_length - 1, origin.length if origin else 0)
        if whole and self.entries.slots and lane.request.cache_prompt and new >= max(1, self.apart):
            self._keep(lane, "reply")

    def status(self) -> CacheStatus:
        """Returns the numbers as they are now."""
        return CacheStatus(
            slots=self.entries.slots,
            kept=len(self.entries),
            queries=self._queries,
            hits=self._hits,
            resumed=self._resumed,
            saved=self._saved,
            evicted=self.entries.evicted,
            failed=self._failed,
            away=len(self.host),
            returned=self._returned,
        )

    def _own(self) -> None:
        """Forgets what was kept before someone else used the pages and the slots."""
        if self.steps.owner is not self:
            self.steps.owner = self
            self._drop_all()

    def _drop_all(self) -> None:
        for entry in list(self.entries):
            self.entries.drop(entry)

    def _match(self, request: Request) -> Entry | None:
        return self.entries.find(self._prompt(request)[:-1]) if self._may_resume(request) else None

    def _may_resume(self, request: Request) -> bool:
        return _asks(request) and len(self.entries) + len(self.host) > 0

    def _spill(self, entry: Entry) -> None:
        """Copies an entry that has to go to the host, unless its own conversation has left it behind."""
        nbytes = self.steps.state_bytes + len(entry.pages) * self.steps.page_bytes
        if not self.host.takes(nbytes) or (entry.passed and entry.kind != "shared"):
            return
        try:
            held = self.steps.spill(entry.slot, entry.pages)
        except ReuseError as error:
            self._note_failure("copied to the host", error)
        else:
            self.host.add(Away(entry.tokens, entry.kind, held, nbytes))

    def _bring_back(self, request: Request) -> None:
        """Moves the state on the host that the prompt begins with to the devices, if none of theirs is as long."""
        away = self.host.find(self._prompt(request)[:-1]) if len(self.host) and self._may_resume(request) else None
        there = self._match(request)
        if away is None or (there is not None and there.length >= len(away.tokens)):
            return
        count = self.pool.needed(len(away.tokens))
        self.host.drop(away)  # before room is made, for what has to go comes to the host and may drive it out
        if not self._make_room(count, None):
            self.host.add(away)
            return
        slot = self.entries.take_slot("prompt")
        assert slot is not None, "whatever was kept came from a slot"
        pages = self.pool.alloc(count)
        try:
            self.steps.refill(away.held, slot, pages)
        except BaseException as error:
            self.pool.release(pages)
            self.entries.give_back(slot)
            if not isinstance(error, ReuseError):
                raise
            self._note_failure("copied back from the host", error)
            self._drop_all()
            return
        self.entries.add(Entry(away.tokens, slot, pages, away.kind))
        self._returned += 1

    def _prompt(self, request: Request) -> np.ndarray:
        """The prompt as an array, made once for a request that waits long."""
        if self._asked is None or self._asked[0] is not request:
            self._asked = request, np.array(request.prompt, np.int32)
        return self._asked[1]

    def _make_room(self, pages: int, spared: Entry | None, kind: Kind = "prompt") -> bool:
        """Whether so many pages are free, if need be at the cost of entries; of none where that would not do."""
        if self.pool.free >= pages:
            return True
        kept = spared.pages if spared is not None else ()
        if self.pool.pages - len({*self.held, *kept}) < pages:
            return False
        while self.pool.free < pages:
            victim = self.entries.victim(() if spared is None else (spared,), kind)
            if victim is None:
                return False
            self.entries.evict(victim)
        return True

    def _keep(self, lane: Lane, kind: Kind) -> None:
        tokens = np.array(lane.tokens[: lane.filled], np.int32)
        entry = self.entries.at(tokens)
        if entry is not None:
            self.entries.touch(entry)
        else:
            # A later state of the same conversation takes the place of the one before first of all. After a reply that
            # is not so: whether the next turn spells it as it was drawn is not known.
            origin = self._origins.get(lane.index)
            moves = origin is not None and kind != "reply" and origin.resumed <= 1 and not origin.passed
            if origin is not None and moves:
                origin.passed = True
            entry = self._save(lane, tokens, kind)
            if origin is not None and moves and entry is None:
                origin.passed = False
        if entry is not None:
            self._origins[lane.index] = entry

    def _save(self, lane: Lane, tokens: np.ndarray, kind: Kind) -> Entry | None:
        slot = self.entries.take_slot(kind)
        if slot is None or not self._make_room(1, None, kind):
            if slot is not None:
                self.entries.give_back(slot)
            return None
        shared = self.pool.shareable(len(tokens))
        own = self.pool.alloc(1)
        try:
            self.steps.copy_page(lane.pages[shared], own[0])
            self.steps.keep(lane.index, len(tokens), slot)
        except BaseException as error:
            self.pool.release(own)
            self.entries.give_back(slot)
            if not isinstance(error, ReuseError):
                raise
            self._note_failure("kept", error)
            self._drop_all()  # the slots were being written: what they hold is unknown
            return None
        self.pool.share(lane.pages[:shared])
        entry = Entry(tokens, slot, (*lane.pages[:shared], *own), kind)
        self.entries.add(entry)
        self._saved += 1
        return entry

    def _note_failure(self, what: str, error: ReuseError) -> None:
        self._failed += 1
        logger.warning("a prompt's state could not be %s: %s", what, error)


def _asks(request: Request) -> bool:
    """Whether a request may begin behind a kept state; rows before one that is scored have to be run."""
    return request.cache_prompt and request.sampling.prompt_logprobs is None
