"""Host side: the envelope of replies and chunks, and what a format must offer. Text, tools and ids live in choices.

Read next: chat_format.py, completion_format.py (one choice), answer.py (sending them).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fnx_jax.engine.request import TokenLogprobs
from fnx_jax.serve.choice import Choice, Piece


@dataclass(frozen=True)
class Head:
    """What every chunk and reply of a request carries. id: with its prefix. created: seconds. model: a served name."""

    id: str
    created: int
    model: str

    def envelope(self, kind: str, choices: Sequence[dict[str, Any]], **extras: Any) -> dict[str, Any]:
        """A reply or a chunk."""
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "choices": list(choices), **extras}


@dataclass(frozen=True)
class ReplyOptions:
    """What a request wants in its reply; fields as in the request.

    top: likeliest tokens beside each where `logprobs`. usage_at_end, usage_always: from stream_options.
    """

    logprobs: bool = False
    top: int = 0
    return_token_ids: bool = False
    include_reasoning: bool = True
    echo: bool = False
    skip_special: bool = True
    usage_at_end: bool = False
    usage_always: bool = False


class ReplyFormat(Protocol):
    """One API's way to write choices.

    reply_kind, chunk_kind: `object` of replies and chunks. reasoning: usage tells reasoning apart.
    """

    reply_kind: str
    chunk_kind: str
    reasoning: bool

    def opening(self, choices: Sequence[Choice]) -> list[dict[str, Any]]:
        """Chunk choices that go before everything else, once the first emission is there."""
        ...

    def chunks(self, choice: Choice, piece: Piece) -> list[dict[str, Any]]:
        """Chunk choices for what a reply gained; the last one carries the finish reason where it ended."""
        ...

    def full(self, choice: Choice) -> dict[str, Any]:
        """The choice of a plain reply."""
        ...

    def extras(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Top-level fields beside the choices, for a plain reply and for a stream's first chunk."""
        ...


class Pending:
    """Tokens and log-probabilities that wait for a chunk with text, because empty chunks are not sent."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []

    def add(self, piece: Piece) -> None:
        """Takes a piece's tokens."""
        self._tokens += piece.tokens
        self._logprobs += piece.logprobs

    def take(self) -> tuple[list[int], list[TokenLogprobs]]:
        """All that waits; nothing waits afterwards."""
        taken = self._tokens, self._logprobs
        self._tokens, self._logprobs = [], []
        return taken


def ending(choice: Choice) -> dict[str, Any]:
    """The fields that say how a reply ended and let a caller check it."""
    return {
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "seed": choice.seed,
        "token_sha": choice.token_sha,
    }
