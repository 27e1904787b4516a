"""Host side: what is varied over HTTP, when two replies are equal, and what that says of each claim."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from experiments.http_client import Answer
from experiments.prove.claims import Result, Tally, Unchecked
from experiments.prove.compare import Difference


@dataclass(frozen=True)
class HttpCell:
    """streams: requests in flight at once. streamed: whether replies come as events. sampling: of SAMPLINGS."""

    streams: int = 1
    streamed: bool = False
    sampling: str = "greedy"

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())


@dataclass(frozen=True)
class Seen:
    """What a cell's replies tell, beyond the reference's: kept prompt tokens, and drafted tokens."""

    cached: int = 0
    accepted: int = 0


CLAIMS: Mapping[str, Callable[[Result], bool]] = {
    "again": lambda result: result.cell.streams == 1 and not result.cell.streamed,
    "solo": lambda result: result.cell.streams > 1,
    "stream": lambda result: result.cell.streamed,
    "fresh": lambda result: result.evidence is not None and result.evidence.cached > 0,
    "plain": lambda result: result.evidence is not None and result.evidence.accepted > 0,
}
"""again: the same request gives the same reply. stream: the joined events are the plain reply."""
NOT_SEEN = {
    "fresh": "no reply tells of a prompt that was kept",
    "plain": "no reply tells of drafts that were taken",
    "chunk": "chunks are the server's",
    "ranks": "devices are the server's",
    "place": "places of experts are the server's",
}


def digest(answers: Sequence[Answer]) -> str:
    """Sixteen hex digits over the replies, the same for every server that gives the same ones."""
    held = [(answer.token_sha, answer.token_ids, answer.text, answer.finish) for answer in answers]
    return hashlib.blake2b(repr(held).encode(), digest_size=8).hexdigest()


def difference(name: str, wanted: Answer, found: Answer) -> Difference | None:
    """How two replies to one request differ, if they do."""
    if wanted.token_ids is not None and found.token_ids is not None and wanted.token_ids != found.token_ids:
        return Difference(name, _parted(wanted.token_ids, found.token_ids), "token")
    if wanted.text != found.text or wanted.token_sha != found.token_sha:
        return Difference(name, _parted(wanted.text, found.text), "text")
    return None if wanted.finish == found.finish else Difference(name, len(wanted.text), "finish")


def seen(wanted: Sequence[Answer], found: Sequence[Answer]) -> Seen:
    """What some reply had of kept prompts and drafts whose counterpart in the reference had none."""
    pairs = list(zip(wanted, found, strict=True))
    return Seen(
        cached=sum(other.cached for one, other in pairs if not one.cached),
        accepted=sum(other.accepted for one, other in pairs if not one.accepted),
    )


def unexercised(cell: HttpCell, answers: Sequence[Answer]) -> tuple[str, ...]:
    """What the cell set out to put to the test and did not."""
    words = [] if all(answer.text or answer.token_ids for answer in answers) else ["a reply was empty"]
    for first in range(0, len(answers), cell.streams):
        group = answers[first : first + cell.streams]
        last_start = max(answer.first_s if cell.streamed else answer.begin_s for answer in group)
        if last_start >= min(answer.end_s for answer in group):
            words.append("replies did not overlap")
    return tuple(dict.fromkeys(words)) if cell.streams > 1 else tuple(words[:1])


def tally(results: Sequence[Result]) -> list[Tally]:
    """The table's lines."""
    lines = []
    for claim, belongs in CLAIMS.items():
        mine = [result for result in results if belongs(result)]
        unequal = [result for result in mine if result.unequal]
        unsure = [result for result in mine if result.unexercised and not result.unequal]
        first = next((r.error or str(r.differences[0]) for r in unequal), "")
        line = Tally(claim, len(mine), len(mine) - len(unequal) - len(unsure), len(unequal), len(unsure), first)
        line.unexpected = [Unchecked(str(r.cell), "; ".join(r.unexercised), expected=False) for r in unsure]
        lines.append(line)
    lines += [Tally(claim) for claim in NOT_SEEN if claim not in CLAIMS]
    for line in lines:
        line.unchecked += line.claim in NOT_SEEN and not line.cells
    return lines


def _parted(one: Sequence, other: Sequence) -> int:
    """The first index at which two sequences differ."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
