"""Host side: the kept states there are, and which of them goes when room is needed. Read next: reuse.py."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fnx_jax.engine.pages import PagePool
from fnx_jax.engine.prompt_cache.radix import RadixTree

Kind = Literal["prompt", "shared", "reply"]


@dataclass(eq=False)
class Entry:
    """One kept state.

    tokens: int32, the rows that it has taken in. slot: where its leaves lie. pages: of its rows; the last one is its
    own, for it may be written on from there. kind: "shared" where conversations may part, "reply" at a reply's end.
    used: when it was last kept or resumed. resumed: how often. passed: its own conversation has a later state.
    """

    tokens: np.ndarray
    slot: int
    pages: tuple[int, ...]
    kind: Kind
    used: int = 0
    resumed: int = 0
    passed: bool = False

    @property
    def length(self) -> int:
        """Rows that need not be run again."""
        return len(self.tokens)


class Entries:
    """Kept states by their tokens, in slots and in pages of `pool`.

    slots: states there is room for. leaving: told of an entry that has to go, while it is still there.
    evicted: how many had to go.
    """

    def __init__(self, slots: int, pool: PagePool, leaving: Callable[[Entry], None] = lambda entry: None):
        self.slots, self.evicted = slots, 0
        self._pool, self._leaving = pool, leaving
        self._tree: RadixTree[Entry] = RadixTree()
        self._free = list(reversed(range(slots)))
        self._entries: list[Entry] = []
        self._now = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def find(self, tokens: np.ndarray) -> Entry | None:
        """Returns the longest entry that `tokens` begins with, itself included."""
        return self._tree.longest(tokens)

    def at(self, tokens: np.ndarray) -> Entry | None:
        """Returns the entry of exactly these tokens."""
        return self._tree.get(tokens)

    def shared(self, tokens: np.ndarray) -> int:
        """Returns how many tokens at the front any entry has at its front too."""
        return self._tree.shared(tokens)

    def take_slot(self, kind: Kind) -> int | None:
        """Returns a slot for a new entry of a kind, at the cost of another's; None where none may go for it."""
        if not self._free and (victim := self.victim(kind=kind)) is not None:
            self.evict(victim)
        return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        """Returns a slot that was taken for nothing."""
        self._free.append(slot)

    def add(self, entry: Entry) -> None:
        """Stores an entry, whose slot was taken and whose pages have it as a holder. Raises KeyError for a second."""
        self._tree.insert(entry.tokens, entry)
        self._entries.append(entry)
        self.touch(entry)

    def touch(self, entry: Entry) -> None:
        """Notes that an entry was used now."""
        self._now += 1
        entry.used = self._now

    def resume(self, entry: Entry) -> None:
        """Notes that a prompt was resumed from an entry."""
        self.touch(entry)
        entry.resumed += 1
        entry.passed = False

    def victim(self, spared: Collection[Entry] = (), kind: Kind = "prompt") -> Entry | None:
        """Returns what has to go next.

        First what its own conversation has moved past, unless others may share it; then ends of replies, then what was
        never resumed, then the rest; each the longest unused first. A reply's end drives out none but the first two.
        """
        order = [entry for entry in self._entries if entry not in spared]
        if kind == "reply":
            order = [entry for entry in order if _rank(entry) < 2]
        return min(order, key=lambda entry: (_rank(entry), entry.used), default=None)

    def evict(self, entry: Entry) -> None:
        """Lets an entry go for the sake of another, or of a lane."""
        self.evicted += 1
        self._leaving(entry)
        self.drop(entry)

    def drop(self, entry: Entry) -> None:
        """Forgets an entry; frees its slot and those of its pages that nobody else holds."""
        self._tree.remove(entry.tokens)
        self._entries.remove(entry)
        self._free.append(entry.slot)
        self._pool.release(entry.pages)


def _rank(entry: Entry) -> int:
    if entry.passed and entry.kind != "shared":
        return 0
    if entry.resumed:
        return 3
    return 1 if entry.kind == "reply" else 2
