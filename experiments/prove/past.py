"""Host side: what an engine has served before a cell's requests, so that these find kept states.

Read next: suite.py.
"""

from collections.abc import Sequence
from dataclasses import replace

from experiments.prove.record import Recording
from fnx_jax.engine.request import Request

REPLY = 2
"""Tokens of a reply that nobody reads."""


def earlier(requests: Sequence[Request]) -> list[Request]:
    """Requests that begin as these do, part from them at an odd row, and leave a state there."""
    return [_earlier(request) for request in requests]


def _earlier(request: Request) -> Request:
    length = len(request.prompt)
    # Half of it is left to run, so that chunks still cut it.
    row = min(length - 1, (length // 2) | 1)
    # The prompt in reverse goes on otherwise, with ids that have a token.
    prompt = (*request.prompt[:row], *request.prompt[::-1][: length - row])
    sampling = replace(request.sampling, max_tokens=REPLY, prompt_logprobs=None, draft=False)
    return replace(request, id=f"before {request.id}", prompt=prompt, sampling=sampling, marks=(row,) if row else ())


def resumable(requests: Sequence[Request]) -> list[Request]:
    """The requests without scores of their prompts, whose rows would have to be run."""
    return [replace(request, sampling=replace(request.sampling, prompt_logprobs=None)) for request in requests]


def replies_alone(recording: Recording) -> Recording:
    """The recording without rows of prompts."""
    kept = {
        name: replace(reply, rows={at: row for at, row in reply.rows.items() if at >= reply.prompt})
        for name, reply in recording.replies.items()
    }
    return replace(recording, replies=kept)
