"""Host side: what is checked of one trial: every way to run its streams against each stream alone, row by row.

A check compares replies and the raw logits of every row, bit for bit, and says what it exercised. Read next:
recording.py, walk.py.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from experiments.prove.compare import differences
from experiments.prove.record import Recording
from experiments.prove.search.cells import Cell
from experiments.prove.search.recording import record_rows, recorded_rows
from experiments.prove.search.trials import Trial
from experiments.prove.search.walk import walk
from fnx_jax.engine.lane import Lane
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.records import RoundRecord
from fnx_jax.engine.request import Request
from fnx_jax.lanes.rounds import DeviceSteps


def reference(steps: DeviceSteps, requests: Sequence[Request]) -> Recording:
    """Every stream alone, its prompt row by row."""
    return together([record_rows(steps, [request], EngineConfig(prefill_chunk=1)) for request in requests])


def together(recordings: Sequence[Recording]) -> Recording:
    """Recordings of unlike requests as one."""
    replies = {name: reply for recording in recordings for name, reply in recording.replies.items()}
    return Recording(replies, tuple(r for recording in recordings for r in recording.rounds))


@dataclass(frozen=True)
class Checks:
    """The checks of one loaded model against the reference `wanted`."""

    trial: Trial
    requests: tuple[Request, ...]
    wanted: Recording
    steps: DeviceSteps
    devices: int

    def company(self) -> Cell:
        """All streams at once, prompts in chunks of a random size; more streams than lanes where the trial has them."""
        rng = self.trial.rng(2)
        config = EngineConfig(prefill_chunk=int(rng.integers(2, 40)), stall_rows=int(rng.integers(1, 20)))
        found = record_rows(self.steps, self.requests, config)
        return self._cell("solo", found, tile_counts(found.rounds), "shared_tiles")

    def chunks(self) -> Cell:
        """Each stream alone, its prompt in pieces of some size."""
        config = EngineConfig(prefill_chunk=int(self.trial.rng(3).integers(2, 40)))
        found = together([record_rows(self.steps, [request], config) for request in self.requests])
        return self._cell("chunk", found, tile_counts(found.rounds), "prompt_rows_together")

    def drafts(self) -> Cell:
        """All streams at once, with drafts of which every third is wrong."""
        offset, vocabulary = int(self.trial.rng(4).integers(3)), self.trial.text["vocab_size"]

        def propose(lane: Lane) -> Sequence[int]:
            rest = self.wanted.replies[lane.request.id].tokens[lane.replied :]
            return [(token + (i % 3 == 2)) % vocabulary for i, token in enumerate(rest, start=lane.replied + offset)]

        found = record_rows(self.steps, self.requests, drafts=propose)
        return self._cell("drafts", found, tile_counts(found.rounds), "drafts_kept", "drafts_rejected")

    def walk(self, poisoned: bool) -> Cell:
        """Rounds that no scheduler makes; `poisoned`: over caches that held nothing but NaN."""
        if poisoned:
            poison(self.steps)
        some = self.requests[: self.steps.lanes]
        replies = {request.id: self.wanted.replies[request.id] for request in some}
        fed = [np.array(request.prompt + replies[request.id].tokens[:-1]) for request in some]
        with recorded_rows(self.steps) as recorder:
            seen = walk(self.steps, fed, self.trial.rng(5 + poisoned))
        streams = {stream.tokens[0]: stream for stream in recorder.streams}
        found = {
            request.id: streams[request.prompt[0]].reply(len(request.prompt), reply.tokens, reply.finish)
            for request, reply in zip(some, replies.values(), strict=True)
        }
        needed = ("shared_tiles", "cuts", "drafts_kept", "drafts_rejected", "commits")
        return self._cell("poison" if poisoned else "walk", Recording(found, ()), seen, *needed)

    def _cell(self, check: str, found: Recording, seen: Counter, *needed: str) -> Cell:
        rows = sum(len(reply.rows) for reply in found.replies.values())
        unequal = differences(self.wanted, found)
        missing = ", ".join(f"no {name}" for name in needed if not seen[name])
        if unequal:
            return Cell(check, self.devices, self.trial.dtype, "unequal", rows, dict(seen), str(unequal[0]))
        status = "unchecked" if missing else "equal"
        return Cell(check, self.devices, self.trial.dtype, status, rows, dict(seen), missing)


def poison(steps: DeviceSteps) -> None:
    """Fills every float leaf of the state with NaN, as a previous user might have left it."""

    def spoil(leaf: jax.Array) -> jax.Array:
        if np.issubdtype(leaf.dtype, np.signedinteger):
            return leaf
        value = 0x7FC1 if leaf.dtype == np.uint16 else np.nan  # the former: a NaN's bits in bfloat16
        return jax.device_put(np.full(leaf.shape, value, leaf.dtype), leaf.sharding)

    steps.state = jax.tree.map(spoil, steps.state)


def tile_counts(rounds: Sequence[RoundRecord]) -> Counter:
    """What an engine's rounds exercised."""
    seen: Counter = Counter(rounds=len(rounds))
    for record in rounds:
        seen["shared_tiles"] += sum(tile.shared for tile in record.tiles)
        seen["mixed_tiles"] += sum(tile.mixed for tile in record.tiles)
        seen["prompt_rows_together"] += sum(rows.prompt > 1 for rows in record.lanes)
        kept = sum(len(tokens) - 1 for _, tokens in record.committed)
        seen["drafts_kept"] += kept
        seen["drafts_rejected"] += sum(rows.verify for rows in record.lanes) - kept
    return seen
