"""Host side: which pages of the device's pool belong to whom.

References are counted, so that lanes and kept prompts can hold the same page. Nobody writes a page with two holders:
whoever goes on from a kept prompt gets a copy of its last page. Read next: scheduler.py.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int


class PageError(Exception):
    """Pages were asked for that are not there, or given back by someone who does not hold them."""


class PagePool:
    """The pages of one device pool and how many holders each has.

    pages: pages of the pool. page: positions of a page.
    """

    def __init__(self, pages: int, page: int):
        if pages < 1 or page < 1:
            raise ValueError(f"PagePool: {pages} pages of {page} positions, both must be at least 1")
        self.pages, self.page = pages, page
        self._holders = [0] * pages
        self._free = list(reversed(range(pages)))

    @property
    def free(self) -> int:
        """Pages without a holder."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Pages with at least one holder."""
        return self.pages - len(self._free)

    def needed(self, positions: int) -> int:
        """Returns how many pages hold `positions` positions."""
        return -(-positions // self.page)

    def shareable(self, length: int) -> int:
        """Returns how many pages at the front nobody writes any more once `length` positions are filled.

        The page of the last position is none of them, even a full one: a draft head writes there when the next token
        is known, so two holders with unlike tokens must not share it.
        """
        return max(0, length - 1) // self.page

    def alloc(self, count: int) -> tuple[int, ...]:
        """Takes `count` free pages for one holder. Raises PageError, taking none, where fewer are free."""
        if count > len(self._free):
            raise PageError(f"{count} pages wanted, {len(self._free)} of {self.pages} are free")
        taken = tuple(self._free.pop() for _ in range(count))
        for page in taken:
            self._holders[page] = 1
        return taken

    def share(self, pages: Sequence[int]) -> None:
        """Adds a holder to pages that are held already. Raises PageError, changing nothing, where one is free."""
        self._require(pages)
        for page in pages:
            self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Drops one holder of each page; a page without holders is free again. Raises PageError as `share`."""
        self._require(pages)
        for page in pages:
            self._holders[page] -= 1
            if not self._holders[page]:
                self._free.append(page)

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Raises PageError unless `holders`, the pages of everyone who has some, explain every reference."""
        expected = Counter(page for pages in holders for page in pages)
        wrong = [page for page, count in enumerate(self._holders) if count != expected[page]]
        if wrong:
            raise PageError(f"pages {wrong} are counted {[self._holders[page] for page in wrong]} times, not as held")
        if sorted(self._free) != [page for page, count in enumerate(self._holders) if not count]:
            raise PageError("the free list disagrees with the counts")

    def _require(self, pages: Sequence[int]) -> None:
        for page, count in Counter(pages).items():
            if not 0 <= page < self.pages or self._holders[page] < count:
                raise PageError(f"page {page} is not held")


class PageTable:
    """For every lane the pages of its positions in order, -1 where it has none."""

    def __init__(self, lanes: int, width: int):
        self._table_LP = np.full((lanes, width), -1, np.int32)

    def assign(self, lane: int, pages: Sequence[int]) -> None:
        """Gives the lane exactly `pages`."""
        self._table_LP[lane] = -1
        self._table_LP[lane, : len(pages)] = pages

    def clear(self, lane: int) -> None:
        """Leaves the lane without pages."""
        self._table_LP[lane] = -1

    def copy(self) -> Int[np.ndarray, "L P"]:
        """Returns the table as it is now; a device may keep it, later changes do not reach it."""
        return self._table_LP.copy()
