"""Host side: rates and waits of replies, as their client saw them. Read next: compare.py.

Pieces are events that held tokens; one may hold several, because a round keeps several drafts, or because a token that
is half a character waits for the rest. Decoding is counted while all replies of a wave decode, so that a level is what
it says: from the last first piece to the end of the first reply. A whole wave goes from its first piece to its last,
with the time when fewer are left: how soon the slowest is there. The gap before a piece is shared evenly among its
tokens, and each counts: that is the time between tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.bench.concurrent.measure import Measured
from experiments.http_client import Answer

MS = 1e3


@dataclass(frozen=True)
class Rate:
    """Tokens, and the seconds that they took."""

    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Rate") -> "Rate":
        return Rate(self.tokens + other.tokens, self.seconds + other.seconds)

    @property
    def tok_s(self) -> float | None:
        """None where there is nothing to divide."""
        return self.tokens / self.seconds if self.tokens and self.seconds > 0 else None


@dataclass(frozen=True)
class Figures:
    """Of one cell in one arm, all its blocks together. prefill: tokens of prompts until a wave's last first piece.

    decode, wave: while all replies decode, and until the last has ended.
    ttft_ms, itl_ms: to the first token, and between tokens: median, and the wait that nine of ten stay below; None
    where there was none. drafted, accepted: drafts tested and taken. tokens: of all replies. rounds: None if unknown.
    """

    prefill: Rate
    decode: Rate
    wave: Rate
    ttft_ms: tuple[float, float] | None
    itl_ms: tuple[float, float] | None
    drafted: int
    accepted: int
    tokens: int
    rounds: float | None

    @property
    def acceptance(self) -> float | None:
        """The share of tested drafts that were taken."""
        return self.accepted / self.drafted if self.drafted else None


def figures_of(measured: Sequence[Measured]) -> Figures:
    """Of the same cell in several blocks, one at least."""
    waves = [wave for part in measured for wave in part.waves]
    answers = [answer for wave in waves for answer in wave]
    rounds = [part.rounds for part in measured if part.rounds is not None]
    return Figures(
        prefill=total(prefill_rate(wave) for wave in waves),
        decode=total(decode_rate(wave) for wave in waves),
        wave=total(wave_rate(wave) for wave in waves),
        ttft_ms=_spread([answer.pieces[0].at_s - answer.begin_s for answer in answers if answer.pieces]),
        itl_ms=_spread([wait_s for answer in answers for wait_s in waits_s(answer)]),
        drafted=sum(answer.drafted for answer in answers),
        accepted=sum(answer.accepted for answer in answers),
        tokens=sum(piece.tokens for answer in answers for piece in answer.pieces),
        rounds=sum(rounds) if len(rounds) == len(measured) else None,
    )


def total(rates: Iterable[Rate]) -> Rate:
    """Tokens and seconds, each added up."""
    return sum(rates, Rate())


def prefill_rate(wave: Sequence[Answer]) -> Rate:
    """Tokens of a wave's prompts, and the time until the last of its first pieces."""
    seconds = max(_first_s(answer) for answer in wave) - min(answer.begin_s for answer in wave)
    return Rate(sum(answer.prompt_tokens for answer in wave), seconds)


def decode_rate(wave: Sequence[Answer]) -> Rate:
    """Tokens of the pieces after the last first piece of a wave, up to the end of its first reply, and that time."""
    if not all(answer.pieces for answer in wave):
        return Rate()
    begin_s, end_s = max(map(_first_s, wave)), min(answer.pieces[-1].at_s for answer in wave)
    pieces = [piece for answer in wave for piece in answer.pieces if begin_s < piece.at_s <= end_s]
    return Rate(sum(piece.tokens for piece in pieces), max(0.0, end_s - begin_s))


def wave_rate(wave: Sequence[Answer]) -> Rate:
    """Tokens after the first pieces of a wave's replies, and the time from its earliest piece to its last."""
    pieces = [answer.pieces for answer in wave if answer.pieces]
    if not pieces:
        return Rate()
    tokens = sum(piece.tokens for reply in pieces for piece in reply[1:])
    return Rate(tokens, max(reply[-1].at_s for reply in pieces) - min(reply[0].at_s for reply in pieces))


def waits_s(answer: Answer) -> list[float]:
    """Seconds before each token behind the first piece."""
    waits = []
    for before, piece in zip(answer.pieces, answer.pieces[1:], strict=False):
        waits += [(piece.at_s - before.at_s) / piece.tokens] * piece.tokens
    return waits


def overlapped(wave: Sequence[Answer]) -> bool:
    """Whether every reply had begun before one had ended."""
    return max(_first_s(answer) for answer in wave) < min(answer.end_s for answer in wave)


def _first_s(answer: Answer) -> float:
    return answer.pieces[0].at_s if answer.pieces else answer.first_s


def _spread(seconds: Sequence[float]) -> tuple[float, float] | None:
    if not seconds:
        return None
    median, most = np.percentile(np.array(seconds) * MS, (50, 90))
    return float(median), float(most)
