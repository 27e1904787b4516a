"""Host side: streams in company over random rounds: cuts anywhere, turns in any order, drafts kept in part, commits.

No engine: every round is written here, so that cuts and windows come that no scheduler would make. Read next:
checks.py.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fnx_jax.engine.steps import RoundPlan
from fnx_jax.families.history import token_history
from fnx_jax.lanes.rounds import DeviceSteps


@dataclass
class Walker:
    """One stream in its lane. tokens: the whole of it. length: rows that are kept."""

    lane: int
    tokens: np.ndarray
    length: int = 0

    @property
    def left(self) -> int:
        """Rows still to run."""
        return len(self.tokens) - self.length


@dataclass(frozen=True)
class Piece:
    """A stream's next rows. tokens: one a row, rejected drafts among them.

    speculative: how many of the last rows are drafts. kept: how many of those the stream really holds.
    """

    walker: Walker
    tokens: np.ndarray
    speculative: int
    kept: int


def walk(steps: DeviceSteps, streams: Sequence[np.ndarray], rng: np.random.Generator) -> Counter:
    """Runs streams to their ends, each in a lane of its own; there are lanes enough for all.

    Returns: how often the walk did what it is for: rounds, shared tiles, cuts, kept and rejected drafts, commits.
    """
    lanes = rng.permutation(steps.lanes)[: len(streams)]
    walkers = [Walker(int(lane), np.asarray(tokens, np.int32)) for lane, tokens in zip(lanes, streams, strict=True)]
    pages_LP = rng.permutation(steps.pages).astype(np.int32).reshape(steps.lanes, -1)
    seen: Counter = Counter()
    turn = 0
    while any(walker.left for walker in walkers):
        # Not left to chance alone: all lanes in the first round, windows in the second, and so on in threes.
        pieces = _pieces(steps, walkers, rng, skip=0.3 * (turn > 0), window=1.0 if turn % 3 == 1 else 0.3)
        turn += 1
        if not pieces:
            continue
        steps.round(_plan(steps, pieces, pages_LP))
        for piece in pieces:
            piece.walker.length += len(piece.tokens) - piece.speculative + piece.kept
        _count(seen, pieces, steps.row_tile)
        if turn % 3 == 2 or rng.random() < 0.2:
            steps.commit(_lengths(walkers, steps.lanes))
            seen["commits"] += 1
    return seen


def _pieces(
    steps: DeviceSteps, walkers: Sequence[Walker], rng: np.random.Generator, skip: float, window: float
) -> list[Piece]:
    """Some lanes' next rows, in any order: certain ones, or a window that lies in one tile.

    skip: chance that a lane waits. window: chance that its rows are a window.
    """
    pieces, used, tile = [], 0, steps.row_tile
    for i in rng.permutation(len(walkers)):
        walker = walkers[i]
        if not walker.left or rng.random() < skip:
            continue
        if walker.length and rng.random() < window:
            room = min(tile - used % tile, steps.context - walker.length)
            piece = _window(walker, min(room, int(rng.integers(2, tile + 1))), steps.vocabulary, rng)
        else:
            count = min(walker.left, int(rng.choice((1, 2, 3, 5, 7, 9, 15, 17))))
            piece = Piece(walker, walker.tokens[walker.length : walker.length + count], 0, 0)
        pieces.append(piece)
        used += len(piece.tokens)
    return pieces


def _window(walker: Walker, rows: int, vocabulary: int, rng: np.random.Generator) -> Piece:
    """A certain row and drafts, of which the first few are the stream's own tokens and the rest are not."""
    kept = int(rng.integers(0, min(rows, walker.left)))
    own = walker.tokens[walker.length : walker.length + 1 + kept]
    follows = walker.tokens[walker.length + 1 + kept] if walker.left > 1 + kept else own[-1]
    wrong = np.full(rows - len(own), (follows + 1) % vocabulary, np.int32)
    return Piece(walker, np.concatenate([own, wrong]), rows - 1, kept)


def _plan(steps: DeviceSteps, pieces: Sequence[Piece], pages_LP: np.ndarray) -> RoundPlan:
    past = [np.concatenate([piece.walker.tokens[: piece.walker.length], piece.tokens]) for piece in pieces]
    positions = [np.arange(piece.walker.length, len(tokens)) for piece, tokens in zip(pieces, past, strict=True)]
    return RoundPlan(
        token_B=np.concatenate([piece.tokens for piece in pieces]),
        lane_B=np.concatenate([np.full(len(piece.tokens), piece.walker.lane, np.int32) for piece in pieces]),
        position_B=np.concatenate(positions).astype(np.int32),
        speculative_B=np.concatenate(
            [np.arange(len(piece.tokens)) >= len(piece.tokens) - piece.speculative for piece in pieces]
        ),
        history_BN=np.concatenate(
            [token_history(tokens, steps.history)[at] for tokens, at in zip(past, positions, strict=True)]
        ),
        pages_LP=pages_LP,
    )


def _lengths(walkers: Sequence[Walker], lanes: int) -> np.ndarray:
    lengths = np.zeros(lanes, np.int32)
    for walker in walkers:
        lengths[walker.lane] = walker.length
    return lengths


def _count(seen: Counter, pieces: Sequence[Piece], tile: int) -> None:
    rows = np.repeat(np.arange(len(pieces)), [len(piece.tokens) for piece in pieces])
    seen["rounds"] += 1
    seen["shared_tiles"] += sum(len(set(rows[i : i + tile])) > 1 for i in range(0, len(rows), tile))
    seen["cuts"] += sum(piece.walker.left > 0 for piece in pieces)
    seen["drafts_kept"] += sum(piece.kept for piece in pieces)
    seen["drafts_rejected"] += sum(piece.speculative - piece.kept for piece in pieces)
