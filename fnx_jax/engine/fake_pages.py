"""Host side: what the pages of the fake device hold, and who wrote it.

Each place remembers its writer, so a gap, a stale page or one that two streams write is an error and not a different
token. A row also writes at the place before its own, as a draft head does once it knows the next token.
Read next: fake.py.
"""

from dataclasses import dataclass

import numpy as np


class PlanError(Exception):
    """A plan that a device could not run, or would run wrongly."""


@dataclass(frozen=True)
class Stream:
    """Rows from one start: row 0, or a kept state's `length` rows of `parent`."""

    number: int
    parent: "Stream | None" = None
    length: int = 0

    def writers(self, positions: np.ndarray) -> np.ndarray:
        """Returns the number of the stream that wrote each position of this one."""
        numbers, stream = np.full(positions.shape, self.number), self
        while stream.parent is not None:
            numbers = np.where(positions < stream.length, stream.parent.number, numbers)
            stream = stream.parent
        return numbers


class FakePages:
    """`pages` pages of `page` positions: of each its token, the token after it, and who wrote them."""

    def __init__(self, pages: int, page: int):
        self._page = page
        self._held = np.full((pages, page, 4), -1, np.int64)  # token, stream, position, the next token

    def write(self, pages_P: np.ndarray, stream: Stream, position: int, token: int) -> None:
        """Stores a row. Raises PlanError where it has no page."""
        page = int(pages_P[position // self._page])
        require(0 <= page < len(self._held), f"no page for position {position}")
        self._held[page, position % self._page] = token, stream.number, position, -1
        if position:
            before = position - 1
            self._held[pages_P[before // self._page], before % self._page, 3] = token

    def read(self, pages_P: np.ndarray, stream: Stream, begin: int, end: int) -> list[int]:
        """The stream's tokens at positions begin to end - 1. Raises PlanError where another's lie there, or none."""
        positions = np.arange(begin, end)
        pages = pages_P[positions // self._page]
        held = self._held[pages, positions % self._page]
        own = (pages >= 0) & (held[:, 1] == stream.writers(positions)) & (held[:, 2] == positions)
        require(own.all(), f"positions {positions[~own]} hold nothing or another stream's rows")
        follows = held[:-1, 3] == held[1:, 0]
        require(follows.all(), f"positions {positions[:-1][~follows]} were written as another stream's")
        return held[:, 0].tolist()

    def copy(self, source: int, target: int) -> None:
        """Copies a page."""
        self._held[target] = self._held[source]

    def take(self, pages_P: np.ndarray, stream: Stream, length: int) -> np.ndarray:
        """Returns a stream's first `length` rows, page by page, without their writers. Raises PlanError as `read`."""
        self.read(pages_P, stream, 0, length)
        content = self._held[pages_P].reshape(-1, 4)
        content[length:] = -1
        content[:, 1] = -1
        return content.reshape(len(pages_P), self._page, 4)

    def put(self, pages_P: np.ndarray, stream: Stream, content: np.ndarray) -> None:
        """Replaces what pages hold by rows that were taken, as a stream's."""
        self._held[pages_P] = content
        self._held[pages_P, :, 1] = np.where(content[:, :, 2] >= 0, stream.number, -1)


def require(ok: object, problem: str) -> None:
    """Raises PlanError unless `ok`."""
    if not ok:
        raise PlanError(problem)
