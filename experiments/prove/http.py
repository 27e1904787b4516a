"""Host side: the equalities as a server's clients see them: by `token_sha`, else by token ids and text.

Every request is asked for alone, then again in company and as a stream. Read next: http_compare.py, ../http_client.py.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from checkpoints.commands import UsageError
from experiments.http_client import Answer, Client, HttpError, client_for
from experiments.prove.claims import Result, Unchecked
from experiments.prove.covering import product
from experiments.prove.http_compare import NOT_SEEN, HttpCell, difference, digest, seen, tally, unexercised
from experiments.prove.report import Proof

SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "top_p": 0.95},
    "unfiltered": {"temperature": 1.3, "top_p": 1.0},
}
REFUSED = (400, 422)
"""What servers answer to options that they do not know."""
WORDS = (
    "the a of model row lane cache token head score def return import for in if not list sum 0 1 x y ( ) : = \n".split(
        " "
    )
)


def prove_http(
    url: str, key: str | None, long: bool, seed: int, progress: Callable[[str], None], begin_s: float
) -> Proof:
    """Compares a server's replies. long: long prompts and replies. Raises UsageError where it cannot be asked."""
    client = client_for(url, key)
    try:
        bodies = make_bodies(client.model(), long, seed)
        extra = _known_options(client, bodies[0])
    except HttpError as error:
        raise UsageError(f"--url: {error}") from error
    axes = {"streams": (1, 4) if long else (1, 2, 4), "streamed": (False, True), "sampling": tuple(SAMPLINGS)}
    cells = [HttpCell(**row) for row in product(axes)]  # pyright: ignore[reportArgumentType]
    references: dict[str, list[Answer]] = {}
    results = _run(client, [body | extra for body in bodies], cells, references, progress)
    lines = tally(results)
    return Proof(
        subject=client.base,
        tallies=lines,
        results=results,
        unchecked=[Unchecked(at.claim, NOT_SEEN[at.claim], True) for at in lines if not at.cells and at.unchecked],
        seconds=time.perf_counter() - begin_s,
        hashes={sampling: digest(answers) for sampling, answers in references.items()},
        facts={
            "compared_by": compared_by([a for answers in references.values() for a in answers]),
            "seed": seed,
            "long": long,
            "model": bodies[0]["model"],
        },
    )


def _known_options(client: Client, body: Mapping[str, Any]) -> dict[str, Any]:
    """What makes the server tell token ids, nothing where only that is refused. Raises HttpError."""
    probe = {**body, "max_tokens": 1, "temperature": 0.0}
    try:
        client.complete({**probe, "return_token_ids": True})
    except HttpError as error:
        if error.status not in REFUSED:
            raise
        client.complete(probe)
        return {}
    return {"return_token_ids": True, "stream_options": {"include_usage": True}}


def compared_by(answers: Sequence[Answer]) -> str:
    """What of these replies can differ."""
    if not answers:
        return "nothing"
    if all(answer.token_sha is not None for answer in answers):
        return "token_sha"
    return "token ids and text" if all(answer.token_ids is not None for answer in answers) else "text"


def make_bodies(model: str, long: bool, seed: int) -> list[dict[str, Any]]:
    """Four requests with prompts of words, without sampling."""
    rng = np.random.default_rng(seed)
    lengths, reply = ((300, 280, 290, 310), 64) if long else ((60, 4, 33, 15), 24)
    prompts = [" ".join(rng.choice(WORDS, length)) for length in lengths]
    return [
        {"model": model, "prompt": prompt, "max_tokens": reply, "seed": seed * 1000 + i}
        for i, prompt in enumerate(prompts)
    ]


def _run(
    client: Client,
    bodies: Sequence[dict],
    cells: Sequence[HttpCell],
    references: dict[str, list[Answer]],
    progress: Callable[[str], None],
) -> list[Result]:
    """Every cell's result; the replies of requests alone are left in `references`."""
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
