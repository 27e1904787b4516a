"""Host side: kept states on the devices: filled from lanes, lent to lanes, and let go where room is needed.

Kept states give way to requests: a page that only they hold is as good as free. What goes wrong with them costs
prompts a new pass and nothing else. Read next: entries.py, tiers.py.
"""

import logging
from collections.abc import Collection, Iterator
from functools import partial

import numpy as np

from fnx_jax.engine.lane import Lane
from fnx_jax.engine.pages import PagePool
from fnx_jax.engine.prompt_cache.away import Away
from fnx_jax.engine.prompt_cache.entries import Entries, Entry, Kind
from fnx_jax.engine.prompt_cache.tiers import Copy, Tiers
from fnx_jax.engine.steps import ReuseError, Steps

logger = logging.getLogger(__name__)


class DeviceTier:
    """The kept states in the slots of `steps` and in pages of `pool`; those that have to go are offered to `tiers`.

    held: pages that lanes hold, whatever else does; the scheduler sets it. saved: states kept. failed: attempts to
    keep, lend, take away or bring back one that went wrong.
    """

    def __init__(self, steps: Steps, pool: PagePool, tiers: Tiers):
        self.entries = Entries(steps.slots, pool, self._leave)
        self.held: Collection[int] = ()
        self.saved = self.failed = 0
        self._steps, self._pool, self._tiers = steps, pool, tiers

    def own(self) -> None:
        """Forgets what was kept before someone else used the pages and the slots."""
        if self._steps.owner is not self:
            self._steps.owner = self
            self.clear()

    def clear(self) -> None:
        """Forgets all."""
        for entry in list(self.entries):
            self.entries.drop(entry)

    def can_have(self, pages: int, spared: Entry | None = None) -> bool:
        """Whether there are so many pages that neither lanes nor one entry hold."""
        kept = spared.pages if spared is not None else ()
        return self._pool.pages - len({*self.held, *kept}) >= pages

    def make_room(self, pages: int, spared: Entry | None = None, kind: Kind = "prompt") -> bool:
        """Whether so many pages are free, if need be at the cost of entries; of none where that would not do."""
        if self._pool.free >= pages:
            return True
        if not self.can_have(pages, spared):
            return False
        while self._pool.free < pages:
            victim = self.entries.victim(() if spared is None else (spared,), kind)
            if victim is None:
                return False
            self.entries.evict(victim)
        return True

    def save(self, lane: Lane, tokens: np.ndarray, kind: Kind) -> Entry | None:
        """Keeps a lane's state after these rows; None where there is no room, or it failed."""
        slot = self.entries.take_slot(kind)
        if slot is None or not self.make_room(1, None, kind):
            if slot is not None:
                self.entries.give_back(slot)
            return None
        shared = self._pool.shareable(len(tokens))
        own = self._pool.alloc(1)
        try:
            self._steps.copy_page(lane.pages[shared], own[0])
            self._steps.keep(lane.index, len(tokens), slot)
        except BaseException as error:
            self._undo(error, "kept", slot, own)
            return None
        self._pool.share(lane.pages[:shared])
        entry = Entry(tokens, slot, (*lane.pages[:shared], *own), kind)
        self.entries.add(entry)
        self.saved += 1
        return entry

    def lend(self, entry: Entry, lane: int, shared: int, total: int) -> tuple[int, ...]:
        """Gives a lane an entry's state and `total` pages, of which the first `shared` are the entry's too.

        Raises: ReuseError where that fails; the entry is gone then, and nothing was taken.
        """
        own = self._pool.alloc(total - shared)
        try:
            self._steps.copy_page(entry.pages[shared], own[0])
            self._steps.restore(entry.slot, lane)
        except BaseException as error:
            self._pool.release(own)
            if isinstance(error, ReuseError):
                self.note_failure("restored", error)
                self.entries.drop(entry)
            raise
        self._pool.share(entry.pages[:shared])
        self.entries.resume(entry)
        return entry.pages[:shared] + own

    def put_back(self, away: Away) -> bool:
        """Brings a state back, whose pages can be had; entries give way to it. Whether that worked."""
        count = self._pool.needed(len(away.tokens))
        self.make_room(count)
        slot = self.entries.take_slot("prompt")
        assert slot is not None, "whatever was kept came from a slot"
        pages = self._pool.alloc(count)
        try:
            self._steps.refill(away.held, slot, pages)
        except BaseException as error:
            self._undo(error, "copied back to the devices", slot, pages)
            return False
        self.entries.add(Entry(away.tokens, slot, pages, away.kind))
        return True

    def copies(self) -> Iterator[tuple[int, Copy]]:
        """What is here, the longest unused first: bytes of each, and what copies it unless a file has it."""
        if self._steps.owner is self:
            for entry in sorted(self.entries, key=lambda entry: entry.used):
                if not _left_behind(entry):
                    yield self._nbytes(entry), partial(self._copy_once, entry)

    def note_failure(self, what: str, error: Exception) -> None:
        """Counts and logs what went wrong."""
        self.failed += 1
        logger.warning("a prompt's state could not be %s: %s", what, error)

    def _undo(self, error: BaseException, what: str, slot: int, pages: tuple[int, ...]) -> None:
        """After a slot was being written: what slots hold is unknown, so all go. Raises what is no ReuseError."""
        self._pool.release(pages)
        self.entries.give_back(slot)
        if not isinstance(error, ReuseError):
            raise error
        self.note_failure(what, error)
        self.clear()

    def _leave(self, entry: Entry) -> None:
        """Copies an entry that has to go, unless its own conversation has left it behind, or a file has it."""
        if _left_behind(entry) or not self._tiers.takes(self._nbytes(entry)):
            return
        if self._tiers.touch(entry.tokens) and not self._tiers.host.budget_bytes:
            return
        if (away := self._copy(entry)) is not None:
            self._tiers.add(away)

    def _copy_once(self, entry: Entry) -> Away | None:
        return None if self._tiers.touch(entry.tokens) else self._copy(entry)

    def _copy(self, entry: Entry) -> Away | None:
        try:
            return Away(entry.tokens, entry.kind, self._steps.spill(entry.slot, entry.pages))
        except ReuseError as error:
            self.note_failure("copied to the host", error)
            return None

    def _nbytes(self, entry: Entry) -> int:
        return self._steps.state_bytes + len(entry.pages) * self._steps.page_bytes


def _left_behind(entry: Entry) -> bool:
    return entry.passed and entry.kind != "shared"
