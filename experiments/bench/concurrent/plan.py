"""Host side: what a run is made of: arms there and back, cells, and the requests of each. Read next: servers.py.

Every request has a name, workload, sampling and number, and asks for the same tokens wherever it appears: in every arm,
alone and in company. So the first reply to it is the reference of all others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkpoints.commands import UsageError
from experiments.bench.concurrent.prompts import PROMPTS

DRAFT, OFF_REQUEST, OFF_SERVER = "draft", "off_request", "off_server"
ARMS = (DRAFT, OFF_REQUEST, OFF_SERVER)
SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "top_p": 0.95, "top_k": 20},
}
ALONE, SERIAL = "alone", "serial"
LEAST_TOKENS = 8
"""Of a reply, so that there is a time after its first piece."""


@dataclass(frozen=True)
class Plan:
    """The choices of a run; fields as the flags."""

    arms: tuple[str, ...]
    levels: tuple[int, ...]
    workloads: tuple[str, ...]
    samplings: tuple[str, ...]
    alone: bool
    serial: bool
    requests: int
    repeats: int
    sets: int
    max_tokens: int
    warm_tokens: int
    seed: int


@dataclass(frozen=True)
class Cell:
    """What is measured at once. level: alone, serial, or a number of streams. Requests come in waves of `streams`."""

    level: str
    streams: int
    workload: str
    sampling: str

    def __str__(self) -> str:
        return f"level {self.level}, {self.workload}, {self.sampling}"


def check_plan(plan: Plan) -> Plan:
    """The same plan. Raises UsageError, naming the flag, where it makes no sense."""
    for flag, given, known in (
        ("arms", plan.arms, ARMS),
        ("workloads", plan.workloads, tuple(PROMPTS)),
        ("samplings", plan.samplings, tuple(SAMPLINGS)),
    ):
        if not given:
            raise UsageError(f"--{flag}: at least one of {', '.join(known)} was wanted")
        for name in given:
            if name not in known:
                raise UsageError(f"--{flag}: {name!r} is none of {', '.join(known)}")
        _once(flag, given)
    for level in plan.levels:
        if level < 1:
            raise UsageError(f"--levels: {level} streams; at least 1 was wanted")
    _once("levels", plan.levels)
    if not (plan.levels or plan.alone):
        raise UsageError("--levels: nothing to measure; a number of streams, or --alone, was wanted")
    if plan.serial and DRAFT not in plan.arms:
        raise UsageError(f"--serial: it asks the server of arm {DRAFT} without drafts; --arms lacks that")
    return plan


def _once(flag: str, given: Sequence[object]) -> None:
    for i, name in enumerate(given):
        if name in given[:i]:
            raise UsageError(f"--{flag}: {name} is given twice")


def read_levels(given: Sequence[str]) -> tuple[int, ...]:
    """Numbers of streams. Raises UsageError."""
    try:
        return tuple(int(level) for level in given if level)
    except ValueError:
        raise UsageError(f"--levels={','.join(given)}: whole numbers with commas between them were wanted") from None


def blocks(arms: Sequence[str], sets: int) -> list[tuple[int, str]]:
    """Every block of a run in order: its half, and its arm. Each set is the arms in order, then mirrored: A B B A."""
    halves = [arms, tuple(reversed(arms))] * sets
    return [(half, arm) for half, order in enumerate(halves) for arm in order]


def cells(plan: Plan, arm: str) -> Iterator[Cell]:
    """What an arm measures, in order."""
    for workload in plan.workloads:
        for sampling in plan.samplings:
            if plan.alone:
                yield Cell(ALONE, 1, workload, sampling)
            if plan.serial and arm == DRAFT:
                yield Cell(SERIAL, 1, workload, sampling)
            for level in plan.levels:
                yield Cell(str(level), level, workload, sampling)


def waves(plan: Plan, cell: Cell) -> list[range]:
    """Numbers of a cell's requests, those sent together in one range.

    Waves are full: there are as many requests as wanted, or more. Alone and serial, all that appear at any level.
    """
    full = {level: -(-plan.requests // level) * level for level in (*plan.levels, 1)}
    most = max(full.values()) if cell.level in (ALONE, SERIAL) else full[cell.streams]
    return [range(first, first + cell.streams) for first in range(0, most, cell.streams)]


def body(plan: Plan, cell: Cell, arm: str, number: int) -> dict[str, Any]:
    """The request of a number, without the model's name.

    Kept states of prompts are neither used nor made: a prompt comes again in every cell, and would be resumed. A fresh
    word in front would prevent that too, but then no two cells would ask for the same tokens.
    """
    prompts = PROMPTS[cell.workload]
    plain = arm == OFF_REQUEST or cell.level == SERIAL
    return {
        "prompt": prompts[number % len(prompts)],
        "seed": plan.seed + number,
        "max_tokens": plan.max_tokens,
        "ignore_eos": True,
        "cache_prompt": False,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **SAMPLINGS[cell.sampling],
        **({"draft": False} if plain else {}),
    }
