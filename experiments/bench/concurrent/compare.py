"""Host side: whether arms gave the same tokens, and then their rates beside each other. Read next: report.py."""

import hashlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.bench.concurrent.measure import Block
from experiments.bench.concurrent.plan import ALONE, DRAFT, SERIAL, Cell, Plan, waves
from experiments.bench.concurrent.rates import Rate, decode_rate, overlapped, total, wave_rate
from experiments.http_client import Answer

EVERY = "all"
"""In place of a workload or a sampling: all of them together."""
WAVES = "whole waves"
"""In place of a sampling: all of them together, each wave until its last reply has ended."""


class Unequal(RuntimeError):
    """Replies that cannot be compared because their tokens differ, or are not known; the message names the first."""


@dataclass(frozen=True)
class Ratio:
    """Decode tok/s with drafts over those of `against`, for a level and a workload, a sampling, or all of them.

    ratio: the median of those of the pairs, in order. A pair is both arms in one half of the order.
    """

    against: str
    level: str
    workload: str
    sampling: str
    ratio: float
    pairs: tuple[float, ...]

    @property
    def whole(self) -> bool:
        """Whether this is a level's ratio, which the gate judges."""
        return (self.workload, self.sampling) == (EVERY, EVERY)


def replies(plan: Plan, block: Block) -> Iterator[tuple[Cell, str, Answer]]:
    """Every reply of a block in order, with its cell and the name of its request."""
    for cell, measured in block.cells.items():
        numbers = [number for wave in waves(plan, cell) for number in wave] * plan.repeats
        answers = [answer for wave in measured.waves for answer in wave]
        for number, answer in zip(numbers, answers, strict=True):
            yield cell, f"{cell.workload}, {cell.sampling}, request {number}", answer


def require_equal(plan: Plan, done: Sequence[Block]) -> dict[str, str]:
    """The token_sha of every request, by its name. Raises Unequal at the first reply that differs or has none."""
    known: dict[str, tuple[str, str]] = {}
    for at, block in enumerate(done, 1):
        for cell, name, answer in replies(plan, block):
            where = f"arm {block.arm} (block {at}), level {cell.level}"
            if not answer.token_sha or not answer.pieces:
                raise Unequal(f"{name}: the reply of {where} has no token_sha or no token ids, so it is unverified")
            sha, first = known.setdefault(name, (answer.token_sha, where))
            if sha != answer.token_sha:
                raise Unequal(f"{name}: {first} gave token_sha {sha}, {where} gave {answer.token_sha}")
    return {name: sha for name, (sha, _) in known.items()}


def digests(hashes: dict[str, str]) -> dict[str, str]:
    """By workload and sampling: a digest of the token_sha of all their requests."""
    parts: dict[str, list[str]] = {}
    for name, sha in sorted(hashes.items()):
        parts.setdefault(name.rpartition(", ")[0], []).append(f"{name}={sha}")
    return {case: hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] for case, lines in parts.items()}


def decoded(block: Block, level: str, workload: str, sampling: str) -> Rate:
    """What a block decoded at a level, all that fits added up."""
    rate = wave_rate if sampling == WAVES else decode_rate
    return total(
        rate(wave)
        for cell, measured in block.cells.items()
        if cell.level == level and workload in (EVERY, cell.workload) and sampling in (EVERY, WAVES, cell.sampling)
        for wave in measured.waves
    )


def ratios(plan: Plan, done: Sequence[Block]) -> list[Ratio]:
    """Drafted over each other arm, by level: of everything, of each workload and sampling, of whole waves.

    A ratio that lacks a time in one of its pairs is left out; `unchecked` names its level.
    """
    cases = [(EVERY, EVERY), *((w, s) for w in plan.workloads for s in plan.samplings), (EVERY, WAVES)]
    by_turn = {(block.half, block.arm): block for block in done}
    halves = sorted({block.half for block in done})
    found = []
    for against in others(plan):
        for level in levels(plan):
            for case in cases:
                pairs = [
                    (
                        decoded(by_turn[half, DRAFT], level, *case).tok_s,
                        decoded(by_turn[half, against], level, *case).tok_s,
                    )
                    for half in halves
                ]
                each = tuple(one / other for one, other in pairs if one and other)
                if len(each) == len(halves):
                    found.append(Ratio(against, level, *case, statistics.median(each), each))
    return found


def others(plan: Plan) -> list[str]:
    """The arms that the drafted one is held against."""
    return [arm for arm in plan.arms if arm != DRAFT] if DRAFT in plan.arms else []


def levels(plan: Plan) -> list[str]:
    """Levels that every arm measures."""
    return [ALONE] * plan.alone + [str(level) for level in plan.levels]


def unmet(found: Sequence[Ratio], gate: float) -> list[Ratio]:
    """Levels whose ratio is below the gate."""
    return [ratio for ratio in found if ratio.whole and ratio.ratio < gate]


def unchecked(plan: Plan, done: Sequence[Block], found: Sequence[Ratio]) -> list[str]:
    """What the run set out to measure and did not, in words."""
    words: dict[str, None] = {}
    tested = dict.fromkeys(plan.arms, 0)
    for block in done:
        for cell, measured in block.cells.items():
            if not all(overlapped(wave) for wave in measured.waves):
                words[f"level {cell.level}, {cell.workload}: replies did not overlap"] = None
        for cell, name, answer in replies(plan, block):
            plain = block.arm != DRAFT or cell.level == SERIAL
            if plain and answer.drafted:
                words[f"arm {block.arm}: the server tested drafts where there should be none ({name})"] = None
            tested[block.arm] += 0 if plain else answer.drafted
            if answer.cached:
                words[f"{name}: {answer.cached} tokens of its prompt were resumed"] = None
        if block.compilations:
            words[f"arm {block.arm}: {block.compilations:g} programs were compiled while it was measured"] = None
    if DRAFT in plan.arms and not tested[DRAFT]:
        words[f"arm {DRAFT}: no draft was tested"] = None
    judged = {(ratio.against, ratio.level) for ratio in found if ratio.whole}
    for against in others(plan):
        for level in levels(plan):
            if (against, level) not in judged:
                words[f"level {level}: no ratio over {against}, for want of a time"] = None
    return list(words)
