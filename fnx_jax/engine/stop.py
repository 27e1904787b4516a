"""Host side: stop strings. Where in a reply's text one is complete, and how much text is safe to show before that.

Matching is over text, whatever the tokens are. Both ends of the system use these classes, so that they agree: the
engine's watcher to end a reply, the text layer to cut what it shows. Text that must not count, such as reasoning, is
kept away by the decoder: it returns "" for it. Read next: ending.py.
"""

from collections.abc import Sequence
from typing import Protocol


class Decoder(Protocol):
    """Turns a reply's tokens into text, piece by piece."""

    def push(self, token: int) -> str:
        """Takes the next token; returns the text it adds, "" while a character is incomplete or text is exempt."""
        ...


class StopMatcher:
    """Looks for stop strings in text that arrives in pieces.

    Of the strings that a piece completes, the one that starts first wins, ties by their order in `strings`.

    cut: where the match starts, in characters of all the text fed; None before a match.
    matched: the string that matched; None before a match.
    """

    def __init__(self, strings: Sequence[str]):
        if "" in strings:
            raise ValueError("StopMatcher: a stop string is empty")
        self._strings = tuple(strings)
        self._reach = max((len(string) for string in strings), default=1) - 1
        self._tail = ""
        self._length = 0
        self.cut: int | None = None
        self.matched: str | None = None

    def feed(self, piece: str, counts: bool = True) -> str | None:
        """Adds text and returns the stop string that it completes, if any.

        counts: False where a string completed by this piece is to be ignored; one that only starts here may still
        be completed by a later piece. After a match, nothing more is looked at.
        """
        if self.matched is not None:
            return None
        text = self._tail + piece
        found = self._first(text, len(self._tail)) if counts and piece else None
        if found is not None:
            start, order = found
            self.cut, self.matched = self._length - len(self._tail) + start, self._strings[order]
        self._length += len(piece)
        self._tail = text[-self._reach :] if self._reach else ""
        return self.matched

    @property
    def safe(self) -> int:
        """Characters, from the start of the text, that no stop string can take away any more."""
        if self.cut is not None:
            return self.cut
        return self._length - self._held()

    def _first(self, text: str, old: int) -> tuple[int, int] | None:
        """The earliest (start, order) of a string that ends in text[old:]."""
        starts = [(text.find(string, max(0, old - len(string) + 1)), i) for i, string in enumerate(self._strings)]
        return min((found for found in starts if found[0] >= 0), default=None)

    def _held(self) -> int:
        """Length of the longest end of the text that is the beginning of a stop string."""
        for length in range(len(self._tail), 0, -1):
            if any(len(string) > length and string.startswith(self._tail[-length:]) for string in self._strings):
                return length
        return 0


class StopStrings:
    """A StopWatcher over decoded text.

    min_tokens: a string completed by one of the first `min_tokens` tokens does not end the reply, as in
    SamplingParams. matcher: what was found, for a text layer that cuts by it.
    """

    def __init__(self, strings: Sequence[str], decoder: Decoder, min_tokens: int = 0):
        self.matcher = StopMatcher(strings)
        self._decoder = decoder
        self._min_tokens = min_tokens
        self._tokens = 0

    def push(self, token: int) -> str | None:
        """Takes the next reply token; returns the stop string that its text completes, else None."""
        self._tokens += 1
        return self.matcher.feed(self._decoder.push(token), self._tokens > self._min_tokens)
