"""Host side: what a request cost, in tokens. Read next: replies.py."""

from collections.abc import Iterable
from typing import Any

from fnx_jax.serve.choice import Choice


def usage(prompt_tokens: int, choices: Iterable[Choice], reasoning: bool = False, n: int = 1) -> dict[str, Any]:
    """The `usage` object.

    Prompt tokens count once whatever `n`; completion tokens are all that were emitted: reasoning, calls, end tokens.
    Drafts are told where some were tested.
    Cached ones are those that the first reply to each prompt found kept.

    Args: prompt_tokens: of all prompts. choices: the replies so far. reasoning: add the share of reasoning.
      n: replies to each prompt.
    """
    choices = list(choices)
    completion = sum(len(choice.tokens) for choice in choices)
    out: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in choices[::n])},
    }
    details: dict[str, int] = {}
    if reasoning:
        details["reasoning_tokens"] = sum(choice.transcript.reasoning_tokens for choice in choices)
    if drafted := sum(choice.drafted for choice in choices):
        accepted = sum(choice.accepted for choice in choices)
        details |= {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted}
    return out | {"completion_tokens_details": details} if details else out
