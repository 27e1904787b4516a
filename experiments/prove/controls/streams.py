"""Host side: rows of streams in many circumstances against each stream whole and alone, by raw logits, bit for bit.

Chunks, company, rejected drafts, and lanes that others used before: what the equalities solo, chunk and plain say of
one device. Read next: ranks.py, replies.py.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from experiments.prove.controls.rows import Piece, difference, prompts, run, spoil, tiny_steps
from fnx_jax.lanes.rounds import DeviceSteps
from fnx_jax.lanes.state import emptied

ROWS = 45
CUTS = ((5, 10, 15, 20, 25, 30, 35, 40), (1, 2, 3, 4, 21, 38), (17, 34))
WINDOWS = ((3, 1), (0, 0), (12, 2), (3, 3), (1, 0), (11, 6), (13, 0), (2, 1), (9, 0))
"""Drafts of each window, and how many of them are accepted."""

Prompts = Sequence[np.ndarray]
Part = tuple[str, int, int, np.ndarray]
"""Claim, lane, first position, logits."""


def streams() -> str | None:
    """The check on a tiny model with a recurrent, an n-gram and an attention layer."""
    steps = tiny_steps("base")
    tokens = prompts(steps, steps.lanes, ROWS, seed=5)
    alone = [run(steps, [Piece(lane, ids, 0, ROWS)]) for lane, ids in enumerate(tokens)]
    for claim, lane, start, logits in _parts(steps, tokens):
        found = difference(f"{claim}, lane {lane}", logits, alone[lane][start : start + len(logits)], start)
        if found is not None:
            return found
    return None


def _parts(steps: DeviceSteps, tokens: Prompts) -> Iterator[Part]:
    for part in (_chunks, _company, _windows, _lanes_used_before):
        steps.state = emptied(steps.state)  # what a lane holds from the same tokens would hide what is not written
        yield from part(steps, tokens)


def _chunks(steps: DeviceSteps, tokens: Prompts) -> Iterator[Part]:
    for cuts in CUTS:
        for start, stop in zip((0, *cuts), (*cuts, ROWS), strict=True):
            yield f"chunk [{start}, {stop})", 0, start, run(steps, [Piece(0, tokens[0], start, stop)])


def _company(steps: DeviceSteps, tokens: Prompts) -> Iterator[Part]:
    rng, done = np.random.default_rng(0), [0] * steps.lanes
    while any(count < ROWS for count in done):
        takes = {int(lane): min(int(rng.integers(0, 9)), ROWS - done[lane]) for lane in rng.permutation(steps.lanes)}
        pieces = [Piece(lane, tokens[lane], done[lane], done[lane] + take) for lane, take in takes.items() if take]
        if not pieces:
            continue
        logits, first = run(steps, pieces), 0
        for piece in pieces:
            rows = piece.stop - piece.start
            yield f"solo, {len(pieces)} lanes a round", piece.lane, piece.start, logits[first : first + rows]
            first, done[piece.lane] = first + rows, piece.stop


def _windows(steps: DeviceSteps, tokens: Prompts) -> Iterator[Part]:
    """Windows of drafts of which some are wrong; what is wrong may leave no trace."""
    ids, length = tokens[2], 5
    yield "plain, prompt", 2, 0, run(steps, [Piece(2, ids, 0, length)])
    for drafted, accepted in WINDOWS:
        wrong = ids.copy()
        wrong[length + 1 + accepted :] = (wrong[length + 1 + accepted :] + 3) % steps.vocabulary
        logits = run(steps, [Piece(2, wrong, length, length + 1 + drafted, certain=length + 1)])
        yield f"plain, {accepted} of {drafted} drafts accepted", 2, length, logits[: 1 + accepted]
        length += 1 + accepted
    yield "plain, rest", 2, length, run(steps, [Piece(2, ids, length, ROWS)])


def _lanes_used_before(steps: DeviceSteps, tokens: Prompts) -> Iterator[Part]:
    run(steps, [Piece(1, tokens[2], 0, ROWS)])
    yield "solo, after another stream", 1, 0, run(steps, [Piece(1, tokens[1], 0, ROWS)])
    spoil(steps)
    yield "solo, after a stream of NaN", 1, 0, run(steps, [Piece(1, tokens[1], 0, ROWS)])
    spoil(steps)
    logits = run(steps, [Piece(0, tokens[0], 0, 7), Piece(3, tokens[3], 20, 25), Piece(1, tokens[1], 0, 4)])
    yield "solo, beside a stream of NaN", 0, 0, logits[:7]
    yield "solo, beside a stream of NaN", 1, 0, logits[12:]
