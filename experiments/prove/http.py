"""Host side: the equalities as a server's clients see them: by `token_sha`, else by token ids and text.

Every request is asked for alone, then again in company and as a stream. Read next: http_client.py.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from checkpoints.commands import UsageError
from experiments.prove.claims import Result, Tally, Unchecked
from experiments.prove.compare import Difference
from experiments.prove.covering import product
from experiments.prove.http_client import Answer, Client, HttpError, client_for
from experiments.prove.report import Proof

SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "top_p": 0.95},
    "unfiltered": {"temperature": 1.3, "top_p": 1.0},
}
WORDS = (
    "the a of model row lane cache token head score def return import for in if not list sum 0 1 x y ( ) : = \n".split(
        " "
    )
)


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


def prove_http(
    url: str, key: str | None, long: bool, seed: int, progress: Callable[[str], None], begin_s: float
) -> Proof:
    """Compares a server's replies. long: long prompts and replies. Raises UsageError where it cannot be asked."""
    client = client_for(url, key)
    try:
        bodies = make_bodies(client.model(), long, seed)
        probe = client.complete({**bodies[0], "max_tokens": 1, "return_token_ids": True, "temperature": 0.0})
        extra = {"return_token_ids": True, "stream_options": {"include_usage": True}}
    except HttpError as error:
        if ": 400:" not in str(error):
            raise UsageError(f"--url: {error}") from error
        probe, extra = None, {}
    axes = {"streams": (1, 4) if long else (1, 2, 4), "streamed": (False, True), "sampling": tuple(SAMPLINGS)}
    cells = [HttpCell(**row) for row in product(axes)]  # pyright: ignore[reportArgumentType]
    results = _run(client, [body | extra for body in bodies], cells, progress)
    lines = tally(results)
    by = "token_sha" if probe and probe.token_sha else "token ids and text" if probe and probe.token_ids else "text"
    return Proof(
        subject=client.base,
        tallies=lines,
        results=results,
        unchecked=[Unchecked(at.claim, NOT_SEEN[at.claim], True) for at in lines if not at.cells and at.unchecked],
        seconds=time.perf_counter() - begin_s,
        facts={"compared_by": by, "seed": seed, "long": long, "model": bodies[0]["model"]},
    )


def make_bodies(model: str, long: bool, seed: int) -> list[dict[str, Any]]:
    """Four requests with prompts of words, without sampling."""
    rng = np.random.default_rng(seed)
    lengths, reply = ((300, 280, 290, 310), 64) if long else ((60, 4, 33, 15), 24)
    prompts = [" ".join(rng.choice(WORDS, length)) for length in lengths]
    return [
        {"model": model, "prompt": prompt, "max_tokens": reply, "seed": seed * 1000 + i}
        for i, prompt in enumerate(prompts)
    ]


def _run(client: Client, bodies: Sequence[dict], cells: Sequence[HttpCell], progress: Callable) -> list[Result]:
    references: dict[str, list[Answer]] = {}
    results = []
    for cell in cells:
        progress(str(cell))
        begin_s = time.perf_counter()
        try:
            if cell.sampling not in references:
                plain = [body | {"draft": False} for body in bodies] if "return_token_ids" in bodies[0] else bodies
                references[cell.sampling] = ask(client, plain, HttpCell(sampling=cell.sampling))
            answers = ask(client, bodies, cell)
        except (HttpError, OSError, ValueError) as error:
            results.append(Result(cell, error=str(error), seconds=time.perf_counter() - begin_s))
            continue
        pairs = zip(references[cell.sampling], answers, strict=True)
        found = [difference(f"request {i}", one, other) for i, (one, other) in enumerate(pairs)]
        results.append(
            Result(
                cell,
                differences=tuple(d for d in found if d is not None),
                unexercised=unexercised(cell, answers),
                evidence=seen(references[cell.sampling], answers),
                seconds=time.perf_counter() - begin_s,
            )
        )
    return results


def ask(client: Client, bodies: Sequence[dict], cell: HttpCell) -> list[Answer]:
    """Every request's reply, in groups of `cell.streams` at once. Raises HttpError."""
    asked = [{**body, **SAMPLINGS[cell.sampling], "stream": cell.streamed} for body in bodies]
    if not cell.streamed:  # where a reply is whole, servers refuse the options of a stream
        asked = [{name: value for name, value in body.items() if name != "stream_options"} for body in asked]
    answers: list[Answer] = []
    with ThreadPoolExecutor(cell.streams) as pool:
        for first in range(0, len(asked), cell.streams):
            answers += pool.map(client.complete, asked[first : first + cell.streams])
    return answers


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
