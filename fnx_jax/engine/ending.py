"""Host side: when a reply ends, token by token. Read next: lane.py."""

from dataclasses import dataclass

from fnx_jax.engine.request import FinishReason, SamplingParams


@dataclass(frozen=True)
class End:
    """Why a reply ends with its newest token; `stop_reason` and `error` as in Finish."""

    reason: FinishReason
    stop_reason: str | int | None = None
    error: str | None = None


def end_ids(sampling: SamplingParams) -> frozenset[int]:
    """Returns the ids that end a reply: the stop ids, and the end tokens unless they are ignored."""
    return frozenset(sampling.stop_token_ids) | frozenset(() if sampling.ignore_eos else sampling.eos_token_ids)


def ending(sampling: SamplingParams, token: int, replied: int, limit: int, matched: str | None) -> End | None:
    """Decides whether a reply ends with `token`.

    An end token comes before a stop id, a stop id before a stop string, all of them before the limit.

    Args:
      replied: reply tokens, this one included. limit: reply tokens at most.
      matched: the stop string that this token completes.
    """
    if replied > sampling.min_tokens:
        if token in sampling.eos_token_ids and not sampling.ignore_eos:
            return End("stop")
        if token in sampling.stop_token_ids:
            return End("stop", token)
        if matched is not None:
            return End("stop", matched)
    return End("length") if replied >= limit else None
