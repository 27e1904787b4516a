"""Host side: cuts a growing text at its first stop string and holds back what may become one.

Read next: engine/stop.py (the matching), transcript.py (what text is fed).
"""

from collections.abc import Sequence

from fnx_jax.engine.stop import StopMatcher


class StopCut:
    """Passes text on as far as no stop string can take it away.

    Args: stops: none empty. keep: leave the matched string in the text.
    """

    def __init__(self, stops: Sequence[str], keep: bool = False):
        self._matcher = StopMatcher(stops)
        self._keep = keep
        self._held = ""
        self._passed = 0

    @property
    def hit(self) -> str | None:
        """The stop string that was found."""
        return self._matcher.matched

    def feed(self, text: str, counts: bool = True) -> str:
        """Takes more text; returns what is certain to stay. A match completed while `counts` is False is text."""
        if self.hit is not None:
            return ""
        self._held += text
        self._matcher.feed(text, counts)
        end = self._matcher.safe + (len(self.hit) if self.hit is not None and self._keep else 0)
        ready, self._held = self._held[: end - self._passed], self._held[end - self._passed :]
        self._passed = end
        return ready

    def close(self) -> str:
        """Text still held when the reply ends without a match."""
        held, self._held = self._held, ""
        return "" if self.hit is not None else held
