"""Host side: what a request is and what comes back. Plain frozen values, no device, no text.

Read next: steps.py (what a round is), scheduler.py (requests to lanes), loop.py (the thread that runs rounds).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class SamplingParams:
    """How a request's tokens are drawn and when it ends.

    temperature: below 1e-5 the draw is the argmax, ties to the lower id.
    top_k: candidates kept; 0 keeps all. top_p: nucleus mass in (0, 1]. min_p: floor relative to the likeliest.
    presence_penalty, frequency_penalty: subtracted per generated token, once or per count.
    repetition_penalty: divides positive and multiplies negative logits of tokens in the prompt or the reply.
    logit_bias: (token id, addend) pairs.
    seed: 64 bits. choice: index of this reply among the request's `n`.
    max_tokens: reply tokens at most, 0 to run the prompt alone. min_tokens: none of this many first tokens ends the
    reply: end tokens and stop ids are not drawn, stop strings that these tokens complete do not count.
    stop_token_ids: ids that end the reply beside `eos_token_ids`. ignore_eos: `eos_token_ids` do not end it.
    logprobs: top candidates reported per reply token (0 to 20), None for no report.
    prompt_logprobs: the same for prompt tokens.
    draft: whether drafts may be tried; never changes tokens.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    choice: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    draft: bool = True


class StopWatcher(Protocol):
    """Sees a reply's tokens in order, once each, and knows when its text has completed a stop string."""

    def push(self, token: int) -> str | None:
        """Takes the next reply token; returns the stop string it completes, else None."""
        ...


@dataclass(frozen=True)
class Budget:
    """Bounds what a reply begins with and one token closes, such as reasoning.

    tokens: where none of so many first tokens is `close`, the reply goes on with `closing`, whatever is drawn.
    closing: ids, `close` among them.
    """

    tokens: int
    close: int
    closing: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """One reply to make.

    prompt: token ids, at least one. watcher: text-level stop, None where the request has no stop strings; the
    engine's thread is its only caller. cache_prompt: whether kept states may be resumed and made; never changes tokens.
    marks: rows of the prompt up to which others may begin alike, from 1 to all; hints of where to keep a state.
    budget: of the reply's first part, None for no bound.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    watcher: StopWatcher | None = None
    cache_prompt: bool = True
    marks: tuple[int, ...] = ()
    budget: Budget | None = None


@dataclass(frozen=True)
class TokenLogprobs:
    """Raw log-probabilities at one position: the token's own, and the likeliest ids with theirs, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Timing:
    """Seconds of one request: waiting for a lane, filling the prompt, decoding."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True)
class Finish:
    """Why a reply ended.

    stop_reason: the stop string or stop token id that ended it, None for an end token or a limit.
    error: a message for the caller where reason is "error".
    """

    reason: FinishReason
    stop_reason: str | int | None = None
    error: str | None = None
    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True)
class Emission:
    """What one round added to one reply: at least one token, or its end, or its prompt's log-probabilities.

    tokens: newly committed ids, in order. logprobs: one entry a token where asked for.
    prompt_logprobs: sent once, when the prompt is filled; the first prompt token has None.
    drafted, accepted: drafts that were tested for it, and those of them that became its tokens.
    finish: set on the last emission. cached_tokens: prompt tokens that were not run, their state having been kept.
    """

    request_id: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    finish: Finish | None = None
    drafted: int = 0
    accepted: int = 0
    cached_tokens: int = 0


Sink = Callable[[Emission], None]


class EngineError(Exception):
    """A request that the engine cannot take: the message names the field and the limit."""


class QueueFull(EngineError):
    """No room in the waiting queue."""


class EngineClosed(EngineError):
    """The engine is draining, stopped or failed."""
