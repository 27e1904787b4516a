"""Golden cases as the tests read them, and rounds written by hand."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import load_file

from fnx_jax.engine.steps import RoundPlan
from fnx_jax.families.history import token_history
from fnx_jax.lanes.rounds import DeviceSteps
from fnx_jax.lanes.tiles import cut

FOLDER = Path(__file__).parent.parent / "golden"
CASES = ("base", "silu_two_ple", "long_eos", "official_names", "four_ranks")


@dataclass(frozen=True)
class Case:
    """One golden folder's arrays."""

    name: str
    arrays: dict[str, np.ndarray]

    @property
    def prompts(self) -> range:
        """Prompt numbers."""
        return range(sum(key.endswith(".input_ids") for key in self.arrays))

    def __getitem__(self, key: str) -> np.ndarray:
        return self.arrays[key]

    def __contains__(self, key: str) -> bool:
        return key in self.arrays


def read_case(name: str) -> Case:
    """Reads a case's golden arrays."""
    return Case(name, load_file(FOLDER / name / "golden.safetensors"))


def distance(value: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference, relative to the largest value wanted."""
    return float(np.abs(value - wanted).max() / max(np.abs(wanted).max(), 1e-30))


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) of a lane's tokens; rows from `drafts_from` on are under test."""

    lane: int
    tokens: np.ndarray
    start: int
    stop: int
    drafts_from: int | None = None


def page_table(steps: DeviceSteps) -> np.ndarray:
    """Every lane its own pages, not in order of lanes."""
    per_lane = -(-steps.context // steps.page)
    return np.arange(steps.lanes * per_lane, dtype=np.int32).reshape(per_lane, steps.lanes).T.copy()


def plan(steps: DeviceSteps, pieces: list[Piece], pages_LP: np.ndarray | None = None) -> RoundPlan:
    """A round of these pieces, nothing drawn."""
    position = np.concatenate([np.arange(p.start, p.stop, dtype=np.int32) for p in pieces])
    floor = np.concatenate(
        [np.full(p.stop - p.start, p.stop if p.drafts_from is None else p.drafts_from) for p in pieces]
    )
    return RoundPlan(
        token_B=np.concatenate([p.tokens[p.start : p.stop] for p in pieces]).astype(np.int32),
        lane_B=np.concatenate([np.full(p.stop - p.start, p.lane, np.int32) for p in pieces]),
        position_B=position,
        speculative_B=position >= floor,
        history_BN=np.concatenate([token_history(p.tokens, steps.history)[p.start : p.stop] for p in pieces]),
        pages_LP=page_table(steps) if pages_LP is None else pages_LP,
    )


def run_tiles(
    steps: DeviceSteps, pieces: list[Piece], pages_LP: np.ndarray | None = None
) -> Iterator[tuple[int, jax.Array]]:
    """Runs pieces in one round; yields each tile's live rows and its last streams."""
    planned = plan(steps, pieces, pages_LP)
    ngram = steps.device.ngrams.embeddings(planned.token_B, planned.history_BN)
    for tile in cut(planned):
        yield tile.live, steps.run_tile(planned, tile, ngram)


def run(steps: DeviceSteps, pieces: list[Piece], pages_LP: np.ndarray | None = None) -> np.ndarray:
    """Runs pieces in one round and returns the logits of all their rows."""
    logits = []
    for live, streams in run_tiles(steps, pieces, pages_LP):
        slices = steps.programs.logits(steps.device.params, streams)
        logits.append(np.asarray(steps.programs.whole(slices))[:live])
    return np.concatenate(logits)


def run_streams(steps: DeviceSteps, pieces: list[Piece]) -> np.ndarray:
    """Runs pieces in one round and returns the last streams of all their rows."""
    return np.concatenate([np.asarray(streams)[:live] for live, streams in run_tiles(steps, pieces)])
