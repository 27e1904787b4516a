"""Host side: replies of unlike requests, by tokens, ends and logits: in company, in chunks and with drafts.

The requests of a cell of the proof share one way of drawing; these do not, since a tile's rows may each have their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.prove.compare import differences
from experiments.prove.controls.rows import prompts, tiny_steps
from experiments.prove.record import record
from fnx_jax.engine.lane import Lane
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.plan import Drafts
from fnx_jax.engine.request import Request, SamplingParams
from fnx_jax.lanes.rounds import DeviceSteps

SAMPLINGS: Sequence[Mapping[str, Any]] = (
    dict(temperature=1.2, min_p=0.1),
    dict(temperature=0.0, logprobs=1),
    dict(temperature=0.7, top_p=0.6),
    dict(temperature=2.0),
    dict(temperature=1.5, top_k=9, top_p=0.9, presence_penalty=1.0, repetition_penalty=1.3),
    dict(temperature=1.0, top_k=40),
)
LENGTHS, REPLY = (5, 52, 1, 18, 33, 16), 10
WRONG_EVERY = 3
"""Of the reply tokens that are proposed as drafts, each third is not the reply's."""


def replies() -> str | None:
    """The check on a tiny model with a recurrent, an n-gram and an attention layer."""
    steps = tiny_steps("base")
    asked = requests(steps)
    wanted = record(steps, asked, config(1), streams=1)
    drafts = proposals({name: reply.tokens for name, reply in wanted.replies.items()}, steps.vocabulary)
    runs = (
        ("chunk of 512", 512, 1, None),
        ("chunk of 7", 7, 1, None),
        ("solo, 4 streams", 5, 4, None),
        ("solo, 6 streams in 4 lanes", 17, 6, None),
        ("plain, 4 streams with drafts", 17, 4, drafts),
    )
    for claim, chunk, streams, proposed in runs:
        found = differences(wanted, record(steps, asked, config(chunk), proposed, streams))
        if found:
            return f"{claim}: {found[0]}"
    return None


def requests(steps: DeviceSteps) -> list[Request]:
    """One request a sampling, each with a prompt and a seed of its own."""
    ids = prompts(steps, len(LENGTHS), max(LENGTHS), seed=13)
    return [
        Request(f"stream {i}", tuple(map(int, ids[i][:length])), SamplingParams(seed=20 + i, max_tokens=REPLY, **kind))
        for i, (length, kind) in enumerate(zip(LENGTHS, SAMPLINGS, strict=True))
    ]


def config(chunk: int) -> EngineConfig:
    """Rounds of at most `chunk` prompt rows."""
    return EngineConfig(prefill_chunk=chunk, stall_rows=chunk)


def proposals(known: dict[str, tuple[int, ...]], vocabulary: int, most: int = 4) -> Drafts:
    """Proposes known replies, with wrong tokens in them."""

    def propose(lane: Lane) -> list[int]:
        ahead = known[lane.request.id][lane.replied :][:most]
        wrong = lane.replied % WRONG_EVERY
        return [token if i % WRONG_EVERY != wrong else (token + 1) % vocabulary for i, token in enumerate(ahead)]

    return propose
