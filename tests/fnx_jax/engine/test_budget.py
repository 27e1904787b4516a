"""A reply's budget: what it dictates comes after as many tokens with and without drafts, and costs no rounds."""

import pytest

from fnx_jax.engine.fake import FakeSteps
from fnx_jax.engine.fake_head import adversarial, perfect, right_for
from fnx_jax.engine.fixed_depth import FixedDepth
from fnx_jax.engine.request import Budget, EngineError, Request, SamplingParams
from fnx_jax.engine.scheduler import Scheduler
from tests.fnx_jax.engine.support import plain, serve

CLOSE, CLOSING = 60, (59, 60, 58)


def bounded(tokens: int, **sampling) -> Request:
    """A request whose reply has 30 tokens and would never close by itself."""
    never = ((CLOSE, -float("inf")),)
    sampling = {"temperature": 0, "max_tokens": 30, "ignore_eos": True, "logit_bias": never} | sampling
    return Request("a", (5, 6), SamplingParams(**sampling), budget=Budget(tokens, CLOSE, CLOSING))


def drafted(request: Request, head, depth: int = 4):
    """The reply with drafts, and the steps that made it."""
    steps = FakeSteps(draft_depth=15, head=head)
    scheduler = Scheduler(steps, drafter=FixedDepth(depth))
    return serve(steps, scheduler, [request])["a"], steps, scheduler


@pytest.mark.parametrize("tokens", [0, 1, 2, 5, 11, 28, 29, 30, 40])
@pytest.mark.parametrize("head", [perfect, adversarial, right_for(2)])
def test_what_is_dictated_comes_after_as_many_tokens(tokens, head):
    request = bounded(tokens)
    reply, _, _ = drafted(request, head)
    assert reply.end == plain(request)
    assert reply.tokens[tokens : tokens + 3] == CLOSING[: max(0, 30 - tokens)]


def test_dictated_tokens_cost_no_rounds_and_are_no_drafts():
    request = bounded(4)
    steps = FakeSteps()
    scheduler = Scheduler(steps)
    assert serve(steps, scheduler, [request])["a"].end == plain(request)
    assert steps.rounds == 30 - len(CLOSING)
    assert not scheduler.status().draft_windows
    windows = [lane for record in scheduler.records for lane in record.lanes if lane.decode > 1]
    assert [(lane.decode, lane.verify) for lane in windows] == [(1 + len(CLOSING), 0)]


def test_a_section_that_closes_by_itself_is_left_alone():
    def script(tokens):
        return CLOSE if len(tokens) == 6 else None

    steps = FakeSteps(script=script)
    request = bounded(8, logit_bias=())
    reply = serve(steps, Scheduler(steps), [request])["a"]
    assert reply.end == plain(request, script=script)
    assert reply.tokens[4] == CLOSE and 59 not in reply.tokens[8:9]


def test_a_dictated_token_may_end_the_reply():
    request = bounded(4, stop_token_ids=(CLOSE,))
    reply, _, _ = drafted(request, perfect)
    assert reply.end == plain(request)
    assert reply.last.stop_reason == CLOSE and len(reply.tokens) == 6


def test_a_closing_wider_than_a_tile_takes_several_rounds():
    closing = tuple(range(20, 60)) + (CLOSE,)
    request = Request("a", (5, 6), SamplingParams(temperature=0, max_tokens=60), budget=Budget(3, CLOSE, closing))
    reply, steps, _ = drafted(request, perfect)
    assert reply.end == plain(request)
    assert reply.tokens[3:44] == closing


@pytest.mark.parametrize(
    ("budget", "logprobs", "said"),
    [
        (Budget(-1, CLOSE, CLOSING), None, "budget: -1"),
        (Budget(3, 5, CLOSING), None, "budget: the closing"),
        (Budget(3, 64, (64,)), None, "budget: token id 64"),
        (Budget(3, CLOSE, CLOSING), 2, "logprobs"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(budget, logprobs, said):
    with pytest.raises(EngineError, match=said):
        Scheduler(FakeSteps()).check(Request("a", (1,), SamplingParams(logprobs=logprobs), budget=budget))
