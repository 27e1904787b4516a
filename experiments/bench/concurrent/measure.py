"""Host side: asks servers for every cell, in waves that start together, and arms in turns. Read next: rates.py."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from experiments.bench.concurrent.plan import Cell, Plan, blocks, body, cells, waves
from experiments.bench.concurrent.servers import Open, ServerFailed, counters
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


def run_beside(
    plan: Plan, open_arm: Open, progress: Callable[[str], None], check: Callable[[Sequence[Block]], object]
) -> list[Block]:
    """As `run_blocks`, but with every arm's server there all the time: arms go there and back at each cell.

    What a shared machine does in the course of minutes is then done to all of them. `check` sees every cell's end.
    """
    order = blocks(plan.arms, plan.sets)
    with ExitStack() as stack:
        clients = {}
        for arm in plan.arms:
            progress(f"{arm}: starts")
            clients[arm] = stack.enter_context(open_arm(arm))
        told = {}
        for arm, client in clients.items():
            progress(f"{arm}: warms up")
            with _named(arm):
                told[arm] = client.model(), client.info()
                _warm_up(plan, arm, client, told[arm][0])
        before = {arm: counters(client).get(COMPILATIONS) for arm, client in clients.items()}
        found: list[dict[Cell, Measured]] = [{} for _ in order]
        known: list[Block] = []
        for cell in dict.fromkeys(cell for arm in plan.arms for cell in cells(plan, arm)):
            progress(str(cell))
            for (_, arm), own in zip(order, found, strict=True):
                if cell in cells(plan, arm):
                    with _named(arm):
                        own[cell] = _measure(plan, cell, arm, clients[arm], told[arm][0])
            known = [Block(half, arm, own, told[arm][1]) for (half, arm), own in zip(order, found, strict=True)]
            check(known)
        compiled = {arm: _more(before[arm], counters(client).get(COMPILATIONS)) for arm, client in clients.items()}
    return [replace(block, compilations=compiled[block.arm]) for block in known]


@contextmanager
def _named(arm: str) -> Iterator[None]:
    """Tells of which arm a request failed. Raises ServerFailed."""
    try:
        yield
    except HttpError as error:
        raise ServerFailed(f"arm {arm}: {error}") from error


def _run_block(plan: Plan, half: int, arm: str, client: Client, progress: Callable[[str], None]) -> Block:
    model, info = client.model(), client.info()
    progress("warms up")
    _warm_up(plan, arm, client, model)
    before = counters(client).get(COMPILATIONS)
    found: dict[Cell, Measured] = {}
    for cell in cells(plan, arm):
        progress(str(cell))
        found[cell] = _measure(plan, cell, arm, client, model)
    return Block(half, arm, found, info, _more(before, counters(client).get(COMPILATIONS)))


def _warm_up(plan: Plan, arm: str, client: Client, model: str) -> None:
    """Asks for every shape that will be measured."""
    for cell in cells(plan, arm):
        ask_together(client, [_request(plan, cell, arm, n, model, plan.warm_tokens) for n in waves(plan, cell)[0]])


def _more(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _measure(plan: Plan, cell: Cell, arm: str, client: Client, model: str) -> Measured:
    before = counters(client).get(ROUNDS)
    replies = [
        ask_together(client, [_request(plan, cell, arm, n, model, plan.max_tokens) for n in wave])
        for _ in range(plan.repeats)
        for wave in waves(plan, cell)
    ]
    return Measured(tuple(replies), _more(before, counters(client).get(ROUNDS)))


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
