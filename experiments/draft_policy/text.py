"""Host side: texts as a drafter meets them: which drafts land, what the head thinks of them, what repeats."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

DEPTH = 15
FRESH = 1_000_000


@dataclass(frozen=True)
class Text:
    """How drafts fare.

    landing: chance that draft j lands where those before it did; the last one holds on. spread: how far the chance at
    a place may lie from that, either way. boast: power of the true chance that the head reports, below 1 too much.
    period, other: every so many tokens it changes to the other landing chances and back; 0 never.
    """

    landing: tuple[float, ...]
    spread: float = 0.25
    boast: float = 1.0
    period: int = 0
    other: tuple[float, ...] = ()
    words: Callable[[int, int], tuple[list[int], list[int]]] | None = None

    @property
    def stationary(self) -> bool:
        """Whether one fixed depth could be right all along."""
        return not self.period and self.words is None


class Reply:
    """One reply, all of it decided beforehand: whoever drafts meets the same luck.

    prompt, tokens: ids. runs: by place, how many drafts made there land, one after the other.
    """

    def __init__(self, text: Text, order: int, length: int, seed: int):
        rng = np.random.default_rng((seed, order))
        if text.words is None:
            self.prompt, self.tokens = [order * FRESH], [order * FRESH + 1 + i for i in range(length)]
        else:
            self.prompt, self.tokens = text.words(order * FRESH, length)
        good, other = _by_depth(text.landing), _by_depth(text.other or text.landing)
        turned = (np.arange(length) // text.period % 2 if text.period else np.zeros(length))[:, None]
        landing = np.where(turned, other, good)
        spread = np.minimum(text.spread, np.minimum(landing, 1 - landing))
        chance = landing + spread * rng.uniform(-1, 1, (length, DEPTH))
        hits = rng.random((length, DEPTH)) < chance
        self.runs: list[int] = np.cumprod(hits, axis=1).sum(axis=1).tolist()
        reported = np.where(chance > 0, chance, rng.uniform(0.05, 0.9, chance.shape)) ** text.boast
        self._chances = reported.tolist()

    def draft(self, place: int, depth: int, confidence: float) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Drafts for the tokens from `place` on, and their chances; -1 stands for a wrong one."""
        drafts, chances, product = [], [], 1.0
        for j in range(min(depth, len(self.tokens) - place)):
            product *= self._chances[place][j]
            if j and product < confidence:
                break
            drafts.append(self.tokens[place + j] if j < self.runs[place] else -1)
            chances.append(self._chances[place][j])
        return tuple(drafts), tuple(chances)


class Replies:
    """Replies by their number, made when they are first asked for."""

    def __init__(self, text: Text, length: int, seed: int):
        self._text, self._length, self._seed = text, length, seed
        self._made: dict[int, Reply] = {}

    def __getitem__(self, order: int) -> Reply:
        if order not in self._made:
            self._made[order] = Reply(self._text, order, self._length, self._seed)
        return self._made[order]


def edited(first: int, length: int, every: int = 60) -> tuple[list[int], list[int]]:
    """A prompt, and a reply that repeats it but for one token in so many."""
    prompt = [first + i for i in range(length)]
    return prompt, [first + length + i if i % every == every // 2 else token for i, token in enumerate(prompt)]


def forms(first: int, length: int, head: int = 10, body: int = 12) -> tuple[list[int], list[int]]:
    """A reply of parts that begin alike and go on otherwise: matches that promise what they do not keep."""
    tokens = [first + (i % (head + body) if i % (head + body) < head else head + i) for i in range(length)]
    return [first + FRESH - 1], tokens


def _by_depth(chances: tuple[float, ...]) -> np.ndarray:
    return np.array([chances[min(j, len(chances) - 1)] for j in range(DEPTH)])
