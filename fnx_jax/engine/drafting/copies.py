"""Host side: proposals copied from earlier in a lane's own tokens. Read next: policy.py."""

from collections.abc import Sequence

from fnx_jax.engine.drafting.moving import Mean
from fnx_jax.engine.drafting.settings import WINDOW_ROWS, DraftSettings

AT_ONCE = 1024
"""Tokens that are taken in at once: a round does not wait until a long prompt is."""
MODULUS = (1 << 61) - 1
BASE = 1_000_003


class SuffixIndex:
    """Where the newest `entry` tokens stood before. A token costs the same work however many there are.

    source: position of the token that followed then, None where they are new. behind: tokens are left to take in.
    """

    def __init__(self, entry: int):
        self._entry, self._oldest = entry, pow(BASE, entry, MODULUS)
        self._tokens: list[int] = []
        self._hash = 0
        self._ends: dict[int, int] = {}
        self.source: int | None = None
        self.behind = False

    def catch_up(self, tokens: Sequence[int]) -> None:
        """Takes tokens beyond those it has, AT_ONCE at most; `tokens` begins with these."""
        end = min(len(tokens), len(self._tokens) + AT_ONCE)
        for position in range(len(self._tokens), end):
            self._push(tokens[position])
        self.behind = end < len(tokens)

    def proposal(self, length: int) -> tuple[int, ...]:
        """The tokens that followed, at most `length`; where they reach the end they go on with themselves."""
        if self.source is None or self.behind:
            return ()
        period = len(self._tokens) - self.source
        return tuple(self._tokens[self.source + i % period] for i in range(length))

    def _push(self, token: int) -> None:
        tokens, source = self._tokens, self.source
        tokens.append(token)
        end = len(tokens)
        self._hash = (self._hash * BASE + token + 1) % MODULUS
        if end > self._entry:
            self._hash = (self._hash - self._oldest * (tokens[end - 1 - self._entry] + 1)) % MODULUS
        if source is not None and tokens[source] == token:
            self.source = source + 1  # what goes on matches more than any other place could promise
        else:
            self.source = self._find(end)
        if end >= self._entry:
            self._ends[self._hash] = end

    def _find(self, end: int) -> int | None:
        source = self._ends.get(self._hash) if end >= self._entry else None
        if source is None:
            return None
        newest = self._tokens[end - self._entry :]
        return source if self._tokens[source - self._entry : source] == newest else None  # two may share a hash


class Copier:
    """One lane's copies: how long the next one is, and how likely its tokens land.

    Proposals that got no row count too: whether they would have landed is known all the same.
    """

    def __init__(self, settings: DraftSettings, chance: float):
        self._settings, self.index = settings, SuffixIndex(settings.copy_entry)
        self._size = settings.copy_first
        self._chance = Mean(chance, settings.copy_trust)

    def offer(self, room: int, alone: bool) -> tuple[int, ...]:
        """The next copy, of at most `room` tokens; () where nothing matches. alone: the lane is in no company."""
        length = min(room, self._size if alone else self._settings.copy_first)
        return self.index.proposal(length) if length >= self._settings.copy_least else ()

    def chances(self, length: int) -> list[float]:
        """Chances that tokens of a copy land, each where those before it did."""
        return [self._chance.value] * length

    def note(self, hits: Sequence[bool], tested: int, whole: bool) -> None:
        """Takes how far an offer landed. whole: all that was offered got a row."""
        for hit in hits:
            self._chance.note(hit, self._settings.depth_rate)
        if not all(hits):
            self._size = self._settings.copy_first
        elif whole and len(hits) >= tested:
            self._size = min(WINDOW_ROWS - 1, 2 * self._size + 1)
