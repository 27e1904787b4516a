"""Host side: what is checked of one trial: every way to run its streams against each stream alone, row by row.

A check compares tokens of replies and the raw logits of every row, bit for bit, and says what it exercised. Read next:
recording.py, walk.py.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import jax
import numpy as np

import fnx_jax
from experiments.prove.search.recording import Stream, recorded
from experiments.prove.search.trials import EOS, Trial
from experiments.prove.search.walk import walk
from fnx_jax.engine.lane import Lane
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.request import Request, SamplingParams
from fnx_jax.lanes.rounds import DeviceSteps

Status = Literal["equal", "unequal", "unchecked", "refused"]
SAMPLINGS = (
    dict(temperature=0.0),
    dict(temperature=1.0, top_k=20, top_p=0.95),
    dict(temperature=1.2),
    dict(temperature=0.8, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.5),
)


@dataclass(frozen=True)
class Cell:
    """One comparison. rows: compared. evidence: what was exercised. first: the first difference, or why not."""

    check: str
    devices: int
    dtype: str
    status: Status
    rows: int = 0
    evidence: dict[str, int] = field(default_factory=dict)
    first: str = ""


def failed(cells: Sequence[Cell]) -> bool:
    """Whether anything was unequal or unchecked."""
    return any(cell.status in ("unequal", "unchecked") for cell in cells)


@dataclass(frozen=True)
class Reference:
    """Each stream alone on one device, one row at a time: replies by request, and its rows."""

    requests: tuple[Request, ...]
    replies: dict[str, tuple[int, ...]]
    tokens: tuple[np.ndarray, ...]
    logits: tuple[np.ndarray, ...]


def draw_requests(trial: Trial) -> tuple[Request, ...]:
    """The trial's streams: unlike first tokens, repeated stretches, resets, each another sampling."""
    rng, vocabulary = trial.rng(1), trial.text["vocab_size"]
    firsts = rng.permutation(np.arange(EOS + 1, vocabulary))
    requests = []
    for i, (length, replied) in enumerate(zip(trial.lengths, trial.replies, strict=True)):
        prompt = rng.integers(0, vocabulary, length)
        half = length // 2
        prompt[half : 2 * half] = prompt[:half]  # n-grams and keys that come again
        prompt[rng.random(length) < 0.04] = EOS
        prompt[0] = firsts[i]
        sampling = SamplingParams(seed=int(rng.integers(2**63)), max_tokens=replied, **SAMPLINGS[i % len(SAMPLINGS)])
        requests.append(Request(f"s{i}", tuple(map(int, prompt)), sampling))
    return tuple(requests)


def load(folder: Path, trial: Trial, devices: int, dtype: str) -> fnx_jax.Model:
    """Loads a trial's checkpoint as the trial says. Raises as fnx_jax.load."""
    arithmetic = None if dtype == "served" else dtype
    return fnx_jax.load(
        folder, devices, arithmetic, lanes=trial.lanes, context=trial.context, max_rows=trial.max_rows
    )


def run_engine(
    steps: DeviceSteps, requests: Sequence[Request], config: EngineConfig | None = None, drafts: Callable | None = None
) -> tuple[dict[str, tuple[int, ...]], list[Stream], Engine]:
    """Serves requests; returns replies, recorded streams and the engine. Raises RuntimeError where a request fails."""
    engine = Engine(steps, config, drafts=drafts)
    with recorded(steps) as recorder:
        emissions = engine.run(requests)
    ends = [reply[-1].finish for reply in emissions.values()]
    failures = [end.error for end in ends if end is not None and end.error]
    if failures:
        raise RuntimeError(f"a request failed: {failures[0]}")
    replies = {name: tuple(token for e in reply for token in e.tokens) for name, reply in emissions.items()}
    return replies, recorder.streams, engine


def reference(steps: DeviceSteps, requests: tuple[Request, ...]) -> Reference:
    """Runs every stream alone, its prompt row by row."""
    replies, tokens, logits = {}, [], []
    for request in requests:
        reply, (stream,), _ = run_engine(steps, [request], EngineConfig(prefill_chunk=1))
        replies |= reply
        rows = stream.rows(len(request.prompt) + len(reply[request.id]) - 1)
        tokens.append(rows[0])
        logits.append(rows[1])
    return Reference(requests, replies, tuple(tokens), tuple(logits))


def difference(wanted: Reference, replies: dict[str, tuple[int, ...]] | None, streams: Sequence[Stream]) -> str:
    """The first difference in words, "" where every row and every token is equal bit for bit."""
    found = {stream.tokens[0]: stream for stream in streams}
    for request, tokens, logits in zip(wanted.requests, wanted.tokens, wanted.logits, strict=True):
        if tokens[0] not in found:
            return f"{request.id}: never ran"
        got_tokens, got = found[tokens[0]].rows(len(tokens))
        for position in range(len(tokens)):
            if position >= len(got):
                return f"{request.id}: {len(got)} rows, {len(tokens)} were wanted"
            if got_tokens[position] != tokens[position]:
                return f"{request.id} position {position}: token {got_tokens[position]}, not {tokens[position]}"
            if got[position].tobytes() != logits[position].tobytes():
                off = np.abs(got[position] - logits[position])
                return f"{request.id} position {position}: {np.sum(off != 0)} logits differ, by {off.max():.3g} at most"
        if replies is not None and replies[request.id] != wanted.replies[request.id]:
            return f"{request.id}: reply {replies[request.id]}, not {wanted.replies[request.id]}"
    return ""


@dataclass(frozen=True)
class Checks:
    """The checks of one loaded model against the reference."""

    trial: Trial
    wanted: Reference
    steps: DeviceSteps
    devices: int
    dtype: str

    def company(self) -> Cell:
        """All streams at once, prompts in chunks of a random size, more streams than lanes where there are."""
        rng = self.trial.rng(2)
        config = EngineConfig(prefill_chunk=int(rng.integers(2, 40)), stall_rows=int(rng.integers(1, 20)))
        replies, streams, engine = run_engine(self.steps, self.wanted.requests, config)
        return self._cell("solo", replies, streams, _tiles(engine), ("shared_tiles",))

    def chunks(self) -> Cell:
        """Each stream alone, its prompt in pieces of some size."""
        config = EngineConfig(prefill_chunk=int(self.trial.rng(3).integers(2, 40)))
        replies, streams, seen = {}, [], Counter()
        for request in self.wanted.requests:
            reply, stream, engine = run_engine(self.steps, [request], config)
            replies, streams = replies | reply, streams + stream
            seen += _tiles(engine)
        return self._cell("chunk", replies, streams, seen, ("prompt_rows_together",))

    def drafts(self) -> Cell:
        """All streams at once with drafts that are right for a while: some are kept, some are not."""
        offset, replies = int(self.trial.rng(4).integers(3)), self.wanted.replies

        def propose(lane: Lane) -> Sequence[int]:
            rest = enumerate(replies[lane.request.id][lane.replied :], start=lane.replied + offset)
            return [(token + (i % 3 == 2)) % self.trial.text["vocab_size"] for i, token in rest]

        found, streams, engine = run_engine(self.steps, self.wanted.requests, EngineConfig(), propose)
        return self._cell("drafts", found, streams, _tiles(engine), ("drafts_kept", "drafts_rejected"))

    def walk(self, poisoned: bool) -> Cell:
        """Rounds that no scheduler makes; `poisoned`: over caches that held nothing but NaN."""
        if poisoned:
            poison(self.steps)
        few = slice(0, self.steps.lanes)
        wanted = Reference(
            self.wanted.requests[few], self.wanted.replies, self.wanted.tokens[few], self.wanted.logits[few]
        )
        with recorded(self.steps) as recorder:
            seen = walk(self.steps, wanted.tokens, self.trial.rng(5 + poisoned))
        needed = ("shared_tiles", "cuts", "drafts_kept", "drafts_rejected", "commits")
        return self._cell("poison" if poisoned else "walk", None, recorder.streams, seen, needed, wanted)

    def _cell(
        self,
        check: str,
        replies: dict[str, tuple[int, ...]] | None,
        streams: Sequence[Stream],
        seen: Counter,
        needed: tuple[str, ...],
        wanted: Reference | None = None,
    ) -> Cell:
        wanted = wanted or self.wanted
        first = difference(wanted, replies, streams)
        missing = [name for name in needed if not seen[name]]
        status: Status = "unequal" if first else "unchecked" if missing else "equal"
        if status == "unchecked":
            first = f"no {', no '.join(missing)}"
        rows = sum(len(tokens) for tokens in wanted.tokens)
        return Cell(check, self.devices, self.dtype, status, rows, dict(seen), first)


def poison(steps: DeviceSteps) -> None:
    """Fills every float leaf of the state with NaN, as a previous user might have left it."""

    def spoil(leaf):
        if np.issubdtype(leaf.dtype, np.signedinteger):
            return leaf
        value = 0x7FC1 if leaf.dtype == np.uint16 else np.nan  # the former: a NaN's bits in bfloat16
        return jax.device_put(np.full(leaf.shape, value, leaf.dtype), leaf.sharding)

    steps.state = jax.tree.map(spoil, steps.state)


def _tiles(engine: Engine) -> Counter:
    """What an engine's rounds exercised."""
    seen: Counter = Counter()
    for record in engine.records:
        seen["rounds"] += 1
        seen["shared_tiles"] += sum(tile.shared for tile in record.tiles)
        seen["mixed_tiles"] += sum(tile.mixed for tile in record.tiles)
        seen["prompt_rows_together"] += sum(rows.prompt > 1 for rows in record.lanes)
        verified = sum(rows.verify for rows in record.lanes)
        kept = sum(len(tokens) - 1 for _, tokens in record.committed)
        seen["drafts_kept"] += kept
        seen["drafts_rejected"] += verified - kept
    return seen
