"""Host side: asks one server for every cell of a block, in waves that start together. Read next: rates.py."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.bench.concurrent.plan import Cell, Plan, blocks, body, cells, waves
from experiments.bench.concurrent.servers import Open, counters
from experiments.http_client import ROUNDS, Answer, Client, HttpError

COMPILATIONS = "fnx:compilations_total"


@dataclass(frozen=True)
class Measured:
    """A cell in one block. waves: replies, those asked for together in one tuple, in the order of their numbers.

    rounds: that the server ran meanwhile, None where it does not tell.
    """

    waves: tuple[tuple[Answer, ...], ...]
    rounds: float | None = None


@dataclass(frozen=True)
class Block:
    """One arm's turn. half: its place in the order there and back; arms of one half are a pair.

    info: what the server tells of itself. compilations: after warm-up, None where the server does not tell.
    """

    half: int
    arm: str
    cells: Mapping[Cell, Measured]
    info: Mapping[str, Any]
    compilations: float | None = None


def run_blocks(
    plan: Plan, open_arm: Open, progress: Callable[[str], None], check: Callable[[Sequence[Block]], object]
) -> list[Block]:
    """Every block in order. check: sees what there is after each, and raises where there is no sense in going on.

    Raises: ServerFailed, and what `check` raises; servers are ended before.
    """
    done: list[Block] = []
    order = blocks(plan.arms, plan.sets)
    for at, (half, arm) in enumerate(order, 1):
        name = f"block {at} of {len(order)}, {arm}"
        progress(f"{name}: starts")
        with open_arm(arm) as client:
            done.append(_run_block(plan, half, arm, client, lambda what, name=name: progress(f"{name}: {what}")))
        check(done)
    return done


def _run_block(plan: Plan, half: int, arm: str, client: Client, progress: Callable[[str], None]) -> Block:
    model, info = client.model(), client.info()
    wanted = list(cells(plan, arm))
    progress("warms up")
    for cell in wanted:
        ask_together(client, [_request(plan, cell, arm, n, model, plan.warm_tokens) for n in waves(plan, cell)[0]])
    before = counters(client).get(COMPILATIONS)
    found: dict[Cell, Measured] = {}
    for cell in wanted:
        progress(str(cell))
        found[cell] = _measure(plan, cell, arm, client, model)
    after = counters(client).get(COMPILATIONS)
    compilations = None if before is None or after is None else after - before
    return Block(half, arm, found, info, compilations)


def _measure(plan: Plan, cell: Cell, arm: str, client: Client, model: str) -> Measured:
    before = counters(client).get(ROUNDS)
    replies = [
        ask_together(client, [_request(plan, cell, arm, n, model, plan.max_tokens) for n in wave])
        for _ in range(plan.repeats)
        for wave in waves(plan, cell)
    ]
    after = counters(client).get(ROUNDS)
    return Measured(tuple(replies), None if before is None or after is None else after - before)


def _request(plan: Plan, cell: Cell, arm: str, number: int, model: str, tokens: int) -> dict[str, Any]:
    return body(plan, cell, arm, number) | {"model": model, "max_tokens": tokens}


def ask_together(client: Client, bodies: Sequence[dict[str, Any]]) -> tuple[Answer, ...]:
    """Replies to requests that are sent at once, each by a thread of its own. Raises HttpError, the first there is.

    The threads are daemons: an interrupt must not wait for replies of a server that is about to be ended.
    """
    barrier = threading.Barrier(len(bodies))
    found: list[Answer | HttpError | None] = [None] * len(bodies)

    def ask(at: int) -> None:
        barrier.wait()
        try:
            found[at] = client.complete(bodies[at])
        except HttpError as error:
            found[at] = error

    threads = [threading.Thread(target=ask, args=(at,), daemon=True) for at in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers = []
    for reply in found:
        if not isinstance(reply, Answer):
            raise reply or HttpError("a request was given up")
        answers.append(reply)
    return tuple(answers)
