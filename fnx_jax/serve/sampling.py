"""Host side: request fields -> SamplingParams. Defaults in order: request, override, checkpoint, neutral.

Read next: chat.py and completions.py, which call this once the prompt's length is known.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fnx_jax.engine.request import SamplingParams
from fnx_jax.serve.checks import Wrong
from fnx_jax.serve.errors import bad_request, context_exceeded
from fnx_jax.serve.fields import fields_of
from fnx_jax.serve.validate import Fields, refuse

DEFAULTED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
NEUTRAL: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}


def sampling_defaults(checkpoint: Mapping[str, Any], override: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Values for requests that give none.

    Args: checkpoint: `generation_config.json`, or nothing. override: pairs that win over it.
    Raises: ValueError naming a value that no request could ask for.
    """
    named = {name: value for name, value in checkpoint.items() if name in DEFAULTED and value is not None}
    named |= dict(override)
    table = fields_of("chat")
    for name, value in named.items():
        if name not in DEFAULTED:
            raise ValueError(f"generation config: {name} is not a sampling default ({', '.join(DEFAULTED)})")
        try:
            named[name] = table[name].check(value)
        except Wrong as wrong:
            raise ValueError(f"generation config: {name} {wrong}") from None
    return {**NEUTRAL, **named}


@dataclass(frozen=True)
class Limits:
    """What bounds a request. context: positions a prompt and its reply share. vocabulary: ids. max_n: replies.

    default_max_tokens: reply limit where the request gives none, None for all the room.
    drafts: whether the server can make any.
    """

    context: int
    vocabulary: int
    max_n: int
    default_max_tokens: int | None = None
    drafts: bool = True


def fresh_seed() -> int:
    """A seed for a request without one: 63 random bits."""
    return secrets.randbits(63)


def reply_limit(fields: Fields, limits: Limits, prompt: int, param: str) -> int:
    """Reply tokens that a prompt of `prompt` tokens may get.

    Raises: ApiError 400 `context_length_exceeded` where prompt and reply don't fit.
    """
    name = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
    asked = fields.get(name)
    if asked == 0 and not fields.get("echo"):
        raise refuse(name, "must be at least 1")
    if prompt >= limits.context or prompt + (asked or 0) > limits.context:
        raise context_exceeded(limits.context, prompt, 1 if asked is None else asked, param)
    room = limits.context - prompt
    return min(room, limits.default_max_tokens or room) if asked is None else asked


def sampling_params(
    fields: Fields, defaults: Mapping[str, float], limits: Limits, eos_token_ids: Sequence[int], max_tokens: int
) -> SamplingParams:
    """Builds the parameters of choice 0; the others differ in `choice` only.

    Raises: ApiError 400 for values that are out of range for this model or at odds with each other.
    """
    n, least = fields.get("n", 1), fields.get("min_tokens", 0)
    if n > limits.max_n:
        raise refuse("n", f"must be at most {limits.max_n}")
    if least > max_tokens:
        raise refuse("min_tokens", f"must be at most the reply limit of {max_tokens}")
    if fields.get("draft") and not limits.drafts:
        raise refuse("draft", "must not be true: this server makes no drafts")
    bias, stop_ids = fields.get("logit_bias", ()), fields.get("stop_token_ids", ())
    check_ids("logit_bias", [token for token, _ in bias], limits.vocabulary)
    check_ids("stop_token_ids", stop_ids, limits.vocabulary)
    drawn: dict[str, Any] = {name: fields.get(name, defaults[name]) for name in DEFAULTED}
    return SamplingParams(
        **{**drawn, "top_k": max(0, int(drawn["top_k"]))},
        logit_bias=bias,
        seed=fields.get("seed") if fields.get("seed") is not None else fresh_seed(),
        max_tokens=max_tokens,
        min_tokens=least,
        eos_token_ids=tuple(eos_token_ids),
        stop_token_ids=tuple(stop_ids),
        ignore_eos=fields.get("ignore_eos", False),
        draft=fields.get("draft", True),
    )


def check_ids(param: str, ids: Sequence[int], vocabulary: int) -> None:
    """Raises ApiError 400 where an id isn't in the vocabulary."""
    for token in ids:
        if not 0 <= token < vocabulary:
            raise bad_request(f"{param}: token id {token} is not in the vocabulary of {vocabulary} ids.", param)
