"""Host side: one reply while it is written. Emissions come in, pieces for a stream go out, the whole is kept.

Both kinds of answer are made from the same pieces, so a stream's parts join to the plain reply.
Read next: transcript.py, replies.py.
"""

import hashlib
from dataclasses import dataclass

from fnx_jax.engine.request import Emission, Finish, Request, TokenLogprobs
from fnx_jax.serve.deltas import Delta, merged
from fnx_jax.serve.transcript import Transcript


@dataclass(frozen=True)
class Piece:
    """What one emission added: text deltas, tokens and their log-probabilities, and whether the reply ended."""

    deltas: tuple[Delta, ...] = ()
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    ended: bool = False


class Choice:
    """One of a request's replies.

    index: its place in the answer. request: what the engine was asked. seed: as the caller knows it.
    drafted, accepted: drafts tested for it, and those that became its tokens. tokens, logprobs, deltas: all so far.
    prompt_logprobs: once the prompt is filled. finish: once it has ended.
    cached_tokens: of the prompt, not run again.
    """

    def __init__(self, index: int, request: Request, transcript: Transcript):
        self.index = index
        self.request = request
        self.seed = request.sampling.seed
        self.transcript = transcript
        self.drafted = self.accepted = 0
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.deltas: list[Delta] = []
        self.prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self.finish: Finish | None = None
        self.cached_tokens = 0

    def absorb(self, emission: Emission) -> Piece:
        """Takes the engine's next emission for this reply; returns what it adds."""
        deltas: list[Delta] = []
        for token in emission.tokens:
            deltas += self.transcript.push(token)
        if emission.finish is not None:
            self.finish = emission.finish
            deltas += self.transcript.close()
        if emission.prompt_logprobs is not None:
            self.prompt_logprobs = emission.prompt_logprobs
        self.cached_tokens = emission.cached_tokens
        logprobs = emission.logprobs or ()
        self.drafted += emission.drafted
        self.accepted += emission.accepted
        self.tokens += emission.tokens
        self.logprobs += logprobs
        self.deltas += deltas
        return Piece(tuple(merged(deltas)), emission.tokens, logprobs, self.finish is not None)

    @property
    def finish_reason(self) -> str | None:
        """The reason in the API's words; None while the reply goes on."""
        if self.finish is None:
            return None
        return "tool_calls" if self.finish.reason == "stop" and self.transcript.calls else self.finish.reason

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or stop id that ended the reply."""
        if self.finish is None or self.transcript.called:
            return None
        return self.finish.stop_reason

    @property
    def token_sha(self) -> str:
        """First 12 hex digits of SHA-256 over the comma-joined reply ids, end token included."""
        return hashlib.sha256(",".join(map(str, self.tokens)).encode()).hexdigest()[:12]
