"""Host side: replies by the real host loop on a device that is a hash, drafted, cut and in company against alone.

What the host decides shows here without a compilation; a plan that no device could run is a difference too.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from experiments.prove.controls.replies import config, proposals
from experiments.prove.record import serve
from fnx_jax.engine import loop
from fnx_jax.engine.fake import FakeSteps, PlanError
from fnx_jax.engine.pages import PageError
from fnx_jax.engine.plan import Drafts
from fnx_jax.engine.request import Request, SamplingParams
from fnx_jax.engine.stop import StopStrings

REPLY, VOCABULARY = 24, 64
LENGTHS = (5, 40, 1, 18, 33, 16)
KINDS: Sequence[Mapping[str, Any]] = (
    dict(temperature=1.0),
    dict(temperature=0.8, presence_penalty=1.5, frequency_penalty=1.0, repetition_penalty=1.3),
    dict(temperature=0.0, presence_penalty=2.0),
)
STOPS = (None, ("q",), ("n", "ab"))

Reply = tuple[tuple[int, ...], str, str | int | None]
"""Tokens, why it ended, and what stopped it."""


class Letters:
    """One letter a token."""

    def push(self, token: int) -> str:
        """Takes a token, returns its letter."""
        return chr(ord("a") + token % 26)


def fake_replies() -> str | None:
    """The check; the device is made anew for every run."""
    unstopped = _serve(1, 1, None, stops=False)
    drafts = proposals({name: reply[0] for name, reply in unstopped.items()}, VOCABULARY, most=7)
    wanted = _serve(1, 1, None)
    runs = (
        ("chunk of 11", 11, 1, None),
        ("solo", 7, 6, None),
        ("plain", 512, 1, drafts),
        ("plain, solo", 7, 6, drafts),
    )
    for claim, chunk, streams, proposed in runs:
        try:
            with _quiet():
                found = _serve(chunk, streams, proposed)
        except (PlanError, PageError) as error:
            return f"{claim}: a wrong plan: {error}"
        unequal = [name for name in wanted if wanted[name] != found[name]]
        if unequal:
            return f"{claim}: {unequal[0]}, {_parting(wanted[unequal[0]], found[unequal[0]])}"
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the engine from writing a plan that fails to stderr: it is a finding here, and told as one."""
    logger, handler = logging.getLogger(loop.__name__), logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _parting(wanted: Reply, found: Reply) -> str:
    pairs = zip(wanted[0], found[0], strict=False)
    first = next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(wanted[0]), len(found[0])))
    ends = [f"{len(tokens)} tokens, {reason} {stop or ''}".strip() for tokens, reason, stop in (wanted, found)]
    return f"reply token {first}; {ends[1]}, not {ends[0]}"


def _serve(chunk: int, streams: int, drafts: Drafts | None, stops: bool = True) -> dict[str, Reply]:
    steps, replies = FakeSteps(vocabulary=VOCABULARY), {}
    asked = _requests(stops)
    for first in range(0, len(asked), streams):
        emissions, _ = serve(steps, asked[first : first + streams], config(chunk), drafts)
        for name, pieces in emissions.items():
            end = pieces[-1].finish
            assert end is not None
            replies[name] = tuple(token for piece in pieces for token in piece.tokens), end.reason, end.stop_reason
    return replies


def _requests(stops: bool) -> Sequence[Request]:
    rng = np.random.default_rng(3)
    made = []
    for i, length in enumerate(LENGTHS):
        prompt = tuple(int(token) for token in rng.integers(0, VOCABULARY, length))
        strings = STOPS[i % len(STOPS)] if stops else None
        watcher = StopStrings(strings, Letters()) if strings else None
        sampling = SamplingParams(seed=i, max_tokens=REPLY, **KINDS[(i + i // 3) % len(KINDS)])
        made.append(Request(f"stream {i}", prompt, sampling, watcher))
    return made
