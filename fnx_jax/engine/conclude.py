"""Host side: takes a round's results into its lanes, and says what each reply gained.

A row's draw is the reply's next token, whatever was proposed, unless the reply's budget dictates another; a draft is
kept only where it equals that token.
Read next: scheduler.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from fnx_jax.engine.ending import End
from fnx_jax.engine.lane import Lane
from fnx_jax.engine.plan import Planned, Segment
from fnx_jax.engine.request import Emission, Finish, TokenLogprobs
from fnx_jax.engine.steps import RoundOutput


@dataclass(frozen=True)
class Drawn:
    """One draw's result, as in RoundOutput."""

    token: int
    finite: bool
    logprobs: TokenLogprobs | None


@dataclass(frozen=True)
class Gain:
    """Reply tokens that a lane committed in a round, how many were drafts, and why the reply ends, if it does."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    end: End | None = None
    accepted: int = 0


def conclude(planned: Planned, output: RoundOutput, now_s: float) -> list[Emission]:
    """Commits a round's results to its lanes, in the order of the plan.

    Returns: one emission for each lane that gained tokens, was filled or ended.
    Raises: ValueError where the output does not answer the plan.
    """
    draws, scores = _answers(planned, output)
    emissions = []
    for segment in planned.segments:
        drawn = list(islice(draws, segment.drawn))
        scored = list(islice(scores, segment.scored))
        emission = _take(segment, drawn, scored, now_s)
        if emission is not None:
            emissions.append(emission)
    return emissions


def _answers(planned: Planned, output: RoundOutput) -> tuple[Iterator[Drawn], Iterator[tuple[TokenLogprobs, bool]]]:
    draws, scores = len(planned.plan.draws), len(planned.plan.scores)
    for name, wanted in (("tokens", draws), ("finite", draws), ("draw_logprobs", draws)):
        _require(name, len(getattr(output, name)), wanted)
    for name, wanted in (("score_logprobs", scores), ("score_finite", scores)):
        _require(name, len(getattr(output, name)), wanted)
    drawn = map(Drawn, output.tokens, output.finite, output.draw_logprobs)
    return drawn, zip(output.score_logprobs, output.score_finite, strict=True)


def _require(name: str, got: int, wanted: int) -> None:
    if got != wanted:
        raise ValueError(f"round: {got} entries in {name}, {wanted} were planned")


def _take(
    segment: Segment, drawn: list[Drawn], scored: list[tuple[TokenLogprobs, bool]], now_s: float
) -> Emission | None:
    lane = segment.lane
    for row, (_, finite) in enumerate(scored):
        if not finite:
            return _emission(segment, Gain(end=_not_finite(segment.start + row)), now_s)
    lane.scores.extend(score for score, _ in scored)
    lane.filled = segment.start + len(segment.tokens) - segment.drafts
    filled = segment.prompt and not lane.filling
    if filled:
        lane.prompt_done(now_s)
    gain = _accept(segment, drawn) if drawn else Gain(end=End("length") if filled else None)
    return _emission(segment, gain, now_s, filled) if gain.tokens or gain.end else None


def _accept(segment: Segment, drawn: list[Drawn]) -> Gain:
    """Walks the drawn rows: each draw is committed, and the next row counts only if its draft is that token."""
    lane, tokens, logprobs, accepted = segment.lane, [], [], 0
    drafts = segment.tokens[len(segment.tokens) - segment.drafts :]
    for row, result in enumerate(drawn):
        if not result.finite:
            return Gain(tuple(tokens), tuple(logprobs), _not_finite(len(lane.tokens) - 1), accepted)
        end, landed = None, False
        if not lane.dictated:
            end = lane.commit(result.token)
            tokens.append(result.token)
            if result.logprobs is not None:
                logprobs.append(result.logprobs)
            landed = row < len(drafts) and drafts[row] == result.token
            accepted += landed
            lane.filled += landed and end is None
        spoken, end = _dictate(lane) if end is None else ((), end)
        tokens.extend(spoken)
        if end or spoken or not landed:
            return Gain(tuple(tokens), tuple(logprobs), end, accepted)
    return Gain(tuple(tokens), tuple(logprobs), accepted=accepted)


def _dictate(lane: Lane) -> tuple[tuple[int, ...], End | None]:
    """Commits what is dictated now; the rows of these tokens are the lane's next window."""
    spoken = []
    for token in lane.dictated:
        spoken.append(token)
        if end := lane.commit(token):
            return tuple(spoken), end
    return tuple(spoken), None


def _not_finite(position: int) -> End:
    return End("error", error=f"the model's logits at position {position} are non-finite (NaN or infinity)")


def _emission(segment: Segment, gain: Gain, now_s: float, filled: bool = False) -> Emission:
    lane, sampling = segment.lane, segment.lane.request.sampling
    return Emission(
        lane.request.id,
        gain.tokens,
        None if sampling.logprobs is None else gain.logprobs,
        (None, *lane.scores) if filled and sampling.prompt_logprobs is not None else None,
        finish(lane, gain.end, now_s) if gain.end else None,
        drafted=segment.drafts,
        accepted=gain.accepted,
        cached_tokens=lane.cached,
    )


def finish(lane: Lane, end: End, now_s: float) -> Finish:
    """Returns the last word on an admitted request."""
    return Finish(end.reason, end.stop_reason, end.error, lane.timing(now_s))
