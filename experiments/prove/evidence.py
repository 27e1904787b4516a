"""Host side: whether a cell exercised what it is evidence for. An equality that nothing put to the test is no pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from experiments.prove.cells import Cell
from experiments.prove.record import Recording
from fnx_jax.engine.records import RoundRecord
from fnx_jax.mesh import DEALT, layout


@dataclass(frozen=True)
class Evidence:
    """What a cell's rounds held.

    tiles, shared, mixed: tiles; those with rows of two lanes; those with prompt rows and rows of replies.
    longest_piece: most rows of one prompt in one round. cut_prompts: prompts that took several rounds.
    accepted, rejected: drafts. unlikely: drawn tokens that are not the likeliest. dealt: leaves split over devices.
    resumed: replies that began behind a kept state; odd: those of them at an odd row.
    """

    tiles: int
    shared: int
    mixed: int
    longest_piece: int
    cut_prompts: int
    accepted: int
    rejected: int
    unlikely: int
    dealt: int
    resumed: int = 0
    odd: int = 0


def evidence(recording: Recording, params: Any) -> Evidence:
    """Reads a recording and the parameters it was made with."""
    tiles = [tile for found in recording.rounds for tile in found.tiles]
    pieces = [lane for found in recording.rounds for lane in found.lanes if lane.prompt]
    rounds = [piece.request_id for piece in pieces]
    accepted, verified = _drafts(recording.rounds)
    return Evidence(
        tiles=len(tiles),
        shared=sum(tile.shared for tile in tiles),
        mixed=sum(tile.mixed for tile in tiles),
        longest_piece=max((piece.prompt for piece in pieces), default=0),
        cut_prompts=sum(rounds.count(name) > 1 for name in set(rounds)),
        accepted=accepted,
        rejected=verified - accepted,
        unlikely=_unlikely(recording),
        dealt=sum(spec == DEALT for spec in jax.tree.leaves(layout(params))),
        resumed=sum(reply.cached > 0 for reply in recording.replies.values()),
        odd=sum(reply.cached % 2 for reply in recording.replies.values()),
    )


def _drafts(rounds: Sequence[RoundRecord]) -> tuple[int, int]:
    accepted = verified = 0
    for found in rounds:
        gained = {name: len(tokens) for name, tokens in found.committed}
        for lane in found.lanes:
            if lane.verify:
                verified += lane.verify
                accepted += gained[lane.request_id] - 1
    return accepted, verified


def _unlikely(recording: Recording) -> int:
    replies = recording.replies.values()
    return sum(reply.rows[reply.prompt + i].best != t for reply in replies for i, t in enumerate(reply.tokens))


def unexercised(cell: Cell, found: Evidence, longest_prompt: int) -> list[str]:
    """What the cell set out to put to the test and did not."""
    tests = (
        (cell.sampling != "greedy", found.unlikely, "every draw was the likeliest id"),
        (cell.streams > 1, found.shared, "no tile held rows of two lanes"),
        (cell.drafts != "off", found.accepted, "no draft was accepted"),
        (cell.drafts != "off", found.rejected, "no draft was rejected"),
        (cell.start == "resumed", found.resumed, "no prompt began behind a kept state"),
        (cell.start == "resumed", found.odd, "no state was resumed at an odd row"),
        (cell.chunk > 1, found.longest_piece > 1, "no round held two rows of a prompt"),
        (cell.chunk < longest_prompt, found.cut_prompts, "no prompt was cut"),
        (cell.tp > 1, found.dealt, "no leaf was split over devices"),
    )
    return [words for asked, held, words in tests if asked and not held]
