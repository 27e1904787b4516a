"""Host side: between scheduler and kept states: where a prompt may start, and which states are worth keeping.

Read next: device.py, marks.py, tiers.py.
"""

from dataclasses import dataclass

import numpy as np

from fnx_jax.engine.lane import Lane
from fnx_jax.engine.pages import PagePool
from fnx_jax.engine.prompt_cache.device import DeviceTier
from fnx_jax.engine.prompt_cache.disk import DiskChoice
from fnx_jax.engine.prompt_cache.entries import Entry, Kind
from fnx_jax.engine.prompt_cache.files import StateFileError
from fnx_jax.engine.prompt_cache.marks import choose_marks
from fnx_jax.engine.prompt_cache.status import CacheStatus
from fnx_jax.engine.prompt_cache.tiers import Tiers
from fnx_jax.engine.request import Request
from fnx_jax.engine.steps import Steps


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


class Reuse:
    """The kept states of one scheduler.

    apart: least rows between kept states. host_bytes, disk: for states that leave the devices.
    device, tiers: where they are. Raises: OSError where the disk's folder cannot be read or made.
    """

    def __init__(self, steps: Steps, pool: PagePool, apart: int, host_bytes: int = 0, disk: DiskChoice | None = None):
        self.tiers = Tiers(host_bytes, disk if steps.slots else None)
        self.device = DeviceTier(steps, pool, self.tiers)
        self._pool, self._apart = pool, apart
        self._origins: dict[int, Entry] = {}
        self._asked: tuple[Request, np.ndarray] | None = None
        self._queries = self._hits = self._resumed = 0

    def find(self, request: Request, total: int) -> Start | None:
        """Makes room for a request of `total` pages, and says where it may start.

        None where lanes hold too much, or while its state is being read from a file and lanes have other work.
        """
        self.device.own()
        if not self._bring_back(request):
            return None
        entry = self._match(request)
        if entry is not None:
            taken = self._pool.shareable(entry.length)
            if self.device.make_room(total - taken, entry):
                return Start(total, entry, taken)
        return Start(total) if self.device.make_room(total) else None

    def take(self, start: Start, lane: int) -> tuple[int, ...]:
        """Takes a lane's pages and restores what it starts from.

        Raises: ReuseError where that fails; the entry is gone then, and nothing was taken.
        """
        if start.entry is None:
            return self._pool.alloc(start.total)
        return self.device.lend(start.entry, lane, start.taken, start.total)

    def begin(self, lane: Lane, start: Start) -> None:
        """Tells a lane where it starts, and where its prompt's pass has to stop."""
        request = lane.request
        lane.filled = lane.cached = start.length
        if self.device.entries.slots:
            agreed = self.device.entries.shared(self._prompt(request))
            lane.marks = choose_marks(request, start.length, agreed, self._apart)
            self._queries += len(request.prompt) if _asks(request) else 0
        self._hits += start.length
        if start.entry is not None:
            self._resumed += 1
            self._origins[lane.index] = start.entry

    def keep_prompt(self, lane: Lane, open_rows: int) -> None:
        """Keeps a lane's state where it stands at a mark, or stood before the last round's open rows."""
        for length in sorted({lane.filled - open_rows, lane.filled}):
            if (kind := lane.marks.get(length)) is not None:
                self._keep(lane, kind, length)

    def end(self, lane: Lane, whole: bool) -> None:
        """Keeps the state of a lane that is about to be freed, if its reply is `whole` and that is worth it."""
        origin = self._origins.pop(lane.index, None)
        new = lane.filled - max(lane.prompt_length - 1, origin.length if origin else 0)
        if whole and self.device.entries.slots and lane.request.cache_prompt and new >= max(1, self._apart):
            self._keep(lane, "reply", lane.filled)

    def close(self, orderly: bool) -> None:
        """Ends it. orderly: the devices are well, so what is kept goes to files, where there is a place for them."""
        self.tiers.close(list(self.device.copies()) if orderly else None)

    def status(self) -> CacheStatus:
        """Returns the numbers as they are now."""
        entries, host, disk = self.device.entries, self.tiers.host, self.tiers.disk
        return CacheStatus(
            slots=entries.slots,
            kept=len(entries),
            queries=self._queries,
            hits=self._hits,
            resumed=self._resumed,
            saved=self.device.saved,
            evicted=entries.evicted,
            failed=self.device.failed,
            away=len(host),
            away_bytes=host.used_bytes,
            returned=self.tiers.returned,
            disk=None if disk is None else disk.status(),
        )

    def _match(self, request: Request) -> Entry | None:
        return self.device.entries.find(self._prompt(request)[:-1]) if self._may_resume(request) else None

    def _may_resume(self, request: Request) -> bool:
        return _asks(request) and len(self.device.entries) + len(self.tiers) > 0

    def _bring_back(self, request: Request) -> bool:
        """Moves the longest state that the prompt begins with to the devices. False while a file is being read."""
        there = self._match(request)
        while self._may_resume(request):
            found = self.tiers.find(self._prompt(request)[:-1], above=there.length if there else 0)
            if found is None or not self.device.can_have(self._pool.needed(len(found.tokens))):
                break
            try:
                # Where no lane has work there is nothing better to do than to wait.
                away = self.tiers.fetch(found, patient=not self.device.held)
            except StateFileError:
                continue  # the next best
            if away is None:
                return False
            if self.device.put_back(away):
                self.tiers.note_return(found)
            break
        return True

    def _prompt(self, request: Request) -> np.ndarray:
        """The prompt as an array, made once for a request that waits long."""
        if self._asked is None or self._asked[0] is not request:
            self._asked = request, np.array(request.prompt, np.int32)
        return self._asked[1]

    def _keep(self, lane: Lane, kind: Kind, length: int) -> None:
        tokens = np.array(lane.tokens[:length], np.int32)
        entry = self.device.entries.at(tokens)
        if entry is not None:
            self.device.entries.touch(entry)
        else:
            # A later state of the same conversation takes the place of the one before first of all. After a reply that
            # is not so: whether the next turn spells it as it was drawn is not known.
            origin = self._origins.get(lane.index)
            moves = origin is not None and kind != "reply" and origin.resumed <= 1 and not origin.passed
            if origin is not None and moves:
                origin.passed = True
            entry = self.device.save(lane, tokens, kind)
            if origin is not None and moves and entry is None:
                origin.passed = False
        if entry is not None:
            self._origins[lane.index] = entry


def _asks(request: Request) -> bool:
    """Whether a request may begin behind a kept state; rows before one that is scored have to be run."""
    return request.cache_prompt and request.sampling.prompt_logprobs is None
