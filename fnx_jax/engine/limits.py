"""Host side: the run's choices about queueing and rounds, and what a request must satisfy to be taken at all.

Read next: scheduler.py.
"""

import math
from dataclasses import dataclass

import numpy as np

from fnx_jax.engine.prompt_cache.disk import DiskChoice
from fnx_jax.engine.request import EngineError, Request, SamplingParams
from fnx_jax.engine.steps import Steps

LOGPROBS_MOST = 20
"""Likeliest ids that may be reported with a token."""


@dataclass(frozen=True)
class EngineConfig:
    """How requests queue and how rounds are filled; no field changes a token.

    max_queue: unfinished requests at most, beyond one a lane.
    prefill_chunk: prompt rows of a round at most.
    stall_rows: the same while replies are being decoded; with `max_prefill_stall_ms`, only until round times are known.
    max_prefill_stall_ms: how long a round may take while replies are being decoded, as far as its prompt rows decide.
    passes: a filling prompt that got no row in this many rounds goes first.
    records: round records kept.
    prompt_cache_min_tokens: least rows between two kept states; a shorter prompt leaves none.
    prompt_cache_host_bytes: memory of the host for kept states that had to leave the devices.
    prompt_cache_disk: files for those that have to leave that memory too, and for all at an orderly end. None: none.
    """

    max_queue: int = 256
    prefill_chunk: int = 512
    stall_rows: int = 128
    max_prefill_stall_ms: float | None = None
    passes: int = 8
    records: int = 1024
    prompt_cache_min_tokens: int = 256
    prompt_cache_host_bytes: int = 0
    prompt_cache_disk: DiskChoice | None = None

    def __post_init__(self):
        for name in (
            "max_queue",
            "prefill_chunk",
            "stall_rows",
            "passes",
            "records",
            "prompt_cache_min_tokens",
            "prompt_cache_host_bytes",
        ):
            least = 0 if name in ("max_queue", "prompt_cache_host_bytes") else 1
            if getattr(self, name) < least:
                raise ValueError(f"EngineConfig: {name} is {getattr(self, name)}, must be at least {least}")
        if self.max_prefill_stall_ms is not None and not self.max_prefill_stall_ms > 0:
            raise ValueError(f"EngineConfig: max_prefill_stall_ms is {self.max_prefill_stall_ms}, must be above 0")


def reply_limit(request: Request, context: int) -> int:
    """Returns the reply tokens that the request may have: its own limit, cut by the context."""
    return min(request.sampling.max_tokens, context - len(request.prompt))


def check_request(request: Request, steps: Steps) -> None:
    """Raises EngineError, naming the field and the limit, for a request that could never be served."""
    _check_prompt(request, steps)
    _check_sampling(request.sampling)
    _check_ids(request, steps.vocabulary)
    _check_budget(request)
    window = len(request.prompt) + reply_limit(request, steps.context)
    needed = -(-window // steps.page)
    if needed > steps.pages:
        raise EngineError(
            f"prompt: {len(request.prompt)} tokens and a reply of up to {window - len(request.prompt)} need "
            f"{needed} pages of {steps.page} positions, the cache has {steps.pages}"
        )


def _check_prompt(request: Request, steps: Steps) -> None:
    if not request.prompt:
        raise EngineError("prompt: empty, at least one token is needed")
    if len(request.prompt) >= steps.context:
        raise EngineError(
            f"prompt: {len(request.prompt)} tokens leave no room for a reply in a context of {steps.context} tokens"
        )
    ids = np.asarray(request.prompt)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise EngineError("prompt: token ids must be integers")
    outside = ids[(ids < 0) | (ids >= steps.vocabulary)]
    if outside.size:
        raise EngineError(f"prompt: token id {outside[0]} is not in the vocabulary of {steps.vocabulary} ids")
    for mark in request.marks:
        if not 1 <= mark <= len(request.prompt):
            raise EngineError(f"marks: {mark}, from 1 to the prompt's {len(request.prompt)} tokens was wanted")


def _check_sampling(sampling: SamplingParams) -> None:
    for name, ok, wanted in (
        ("temperature", 0 <= sampling.temperature < math.inf, "a finite number of at least 0"),
        ("top_k", 0 <= sampling.top_k < 2**31, "in [0, 2**31)"),
        ("top_p", 0 < sampling.top_p <= 1, "in (0, 1]"),
        ("min_p", 0 <= sampling.min_p <= 1, "in [0, 1]"),
        ("presence_penalty", math.isfinite(sampling.presence_penalty), "a finite number"),
        ("frequency_penalty", math.isfinite(sampling.frequency_penalty), "a finite number"),
        ("repetition_penalty", 0 < sampling.repetition_penalty < math.inf, "a finite number above 0"),
        ("seed", -(2**63) <= sampling.seed < 2**64, "a 64-bit integer"),
        ("choice", 0 <= sampling.choice < 2**31, "in [0, 2**31)"),
        ("max_tokens", sampling.max_tokens >= 0, "at least 0"),
        ("min_tokens", sampling.min_tokens >= 0, "at least 0"),
        ("logprobs", 0 <= (sampling.logprobs or 0) <= LOGPROBS_MOST, f"in [0, {LOGPROBS_MOST}]"),
        ("prompt_logprobs", 0 <= (sampling.prompt_logprobs or 0) <= LOGPROBS_MOST, f"in [0, {LOGPROBS_MOST}]"),
    ):
        if not ok:
            raise EngineError(f"{name}: {getattr(sampling, name)}, must be {wanted}")


def _check_budget(request: Request) -> None:
    budget = request.budget
    if budget is None:
        return
    if budget.tokens < 0:
        raise EngineError(f"budget: {budget.tokens} tokens, must be at least 0")
    if budget.close not in budget.closing:
        raise EngineError(f"budget: the closing tokens {budget.closing} lack {budget.close}, which closes")
    if request.sampling.logprobs is not None:
        raise EngineError("logprobs: of tokens that a budget dictates there are none; ask for one of the two")


def _check_ids(request: Request, vocabulary: int) -> None:
    sampling = request.sampling
    named = {
        "budget": () if request.budget is None else request.budget.closing,
        "logit_bias": [token for token, _ in sampling.logit_bias],
        "eos_token_ids": sampling.eos_token_ids,
        "stop_token_ids": sampling.stop_token_ids,
    }
    for name, ids in named.items():
        for token in ids:
            if not 0 <= token < vocabulary:
                raise EngineError(f"{name}: token id {token} is not in the vocabulary of {vocabulary} ids")
    for token, bias in sampling.logit_bias:
        if not bias < math.inf:
            raise EngineError(f"logit_bias: {bias} for token id {token}, must be a number below infinity")
