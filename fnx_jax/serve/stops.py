"""Host side: finds the first stop string in a growing text and holds back what may become one.

Read next: transcript.py, which feeds it the text after the reasoning.
"""

from collections.abc import Sequence

from fnx_jax.serve.markup import overlap


class StopCut:
    """Cuts a text at the stop string that is completed first, the longest of those completed together.

    The result depends on the text alone, not on how it is cut into pieces.

    Args: stops: none empty. keep: leave the matched string in the text.
    """

    def __init__(self, stops: Sequence[str], keep: bool = False):
        self.hit: str | None = None
        self._stops = tuple(stops)
        self._keep = keep
        self._held = ""

    def feed(self, text: str, counts: bool = True) -> str:
        """Takes more text; returns what is certain to stay. A match completed while `counts` is False is text."""
        if self.hit is not None:
            return ""
        old, text = len(self._held), self._held + text
        if counts and (match := self._first(text, old)):
            start, self.hit = match
            self._held = ""
            return text[: start + len(self.hit)] if self._keep else text[:start]
        held = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def close(self) -> str:
        """Text still held when the reply ends without a match."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str, old: int) -> tuple[int, str] | None:
        """Start and string of the match that ends first, among those that end after `old` characters."""
        starts = ((text.find(stop, max(0, old - len(stop) + 1)), stop) for stop in self._stops)
        found = [(start + len(stop), start, stop) for start, stop in starts if start >= 0]
        return min(found)[1:] if found else None
