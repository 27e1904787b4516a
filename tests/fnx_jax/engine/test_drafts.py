"""Drafts of a head, held and tested in the rounds: whatever the head says, replies are those without drafts."""

import numpy as np
import pytest

from fnx_jax.engine.drafts import policy_for
from fnx_jax.engine.fake import FakeSteps, Faults
from fnx_jax.engine.fake_head import adversarial, guessing, perfect, right_for
from fnx_jax.engine.fixed_depth import FixedDepth
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.request import Request, SamplingParams
from fnx_jax.engine.rounds import run_round, serve_rounds
from fnx_jax.engine.scheduler import Scheduler
from fnx_jax.engine.steps import DraftOutput
from tests.fnx_jax.engine.support import gather, plain, random_request, serve

GREEDY = SamplingParams(temperature=0, max_tokens=30)


def drafting(head, depth=4, **limits):
    """Steps with a head, and a scheduler that always drafts as deep."""
    steps = FakeSteps(draft_depth=15, head=head, **limits)
    return steps, Scheduler(steps, drafter=FixedDepth(depth))


@pytest.mark.parametrize("depth", [1, 3, 15])
@pytest.mark.parametrize("head", [perfect, adversarial, guessing(3), right_for(1), right_for(2)])
def test_replies_do_not_depend_on_the_head(head, depth):
    rng = np.random.default_rng(depth)
    requests = [random_request(rng, f"r{i}") for i in range(10)]
    steps, scheduler = drafting(head, depth, lanes=3, max_rows=32)
    replies = serve(steps, scheduler, requests)
    assert {name: reply.end for name, reply in replies.items()} == {r.id: plain(r) for r in requests}
    assert steps.draft_calls and scheduler.status().draft_windows


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_perfect_head_saves_rounds_and_every_draft_lands(temperature):
    request = Request("a", (5, 6), SamplingParams(temperature=temperature, seed=8, max_tokens=30, ignore_eos=True))
    steps, scheduler = drafting(perfect, 4)
    assert serve(steps, scheduler, [request])["a"].end == plain(request)
    # The prompt's round gives one token, each of the others five, and the last one what is left.
    assert (steps.rounds, steps.draft_calls) == (7, 6)
    status = scheduler.status()
    assert status.drafted == status.accepted and sum(status.drafted) == 23 and len(status.drafted) == 4


@pytest.mark.parametrize("count", range(4))
def test_drafts_are_counted_by_their_place(count):
    steps, scheduler = drafting(right_for(count), 3)
    serve(steps, scheduler, [Request("a", (5, 6), GREEDY)])
    status = scheduler.status()
    assert len(status.drafted) == 3 and min(status.drafted) > 0
    assert [tested - kept for tested, kept in zip(status.drafted, status.accepted, strict=True)][:count] == [0] * count
    assert not any(status.accepted[count:])


def test_lanes_draft_in_one_call_and_are_tested_in_one_tile():
    requests = [Request(f"r{i}", (7 + i, 9), GREEDY) for i in range(4)]
    steps, scheduler = drafting(perfect, 3)
    serve(steps, scheduler, requests)
    assert steps.draft_calls <= steps.rounds
    tiles = [tile for record in scheduler.records for tile in record.tiles]
    assert any(tile.shared and sum(lane.verify for lane in tile.lanes) == 12 for tile in tiles)


def test_a_request_without_drafts_gets_none_and_the_others_do():
    off = Request("off", (5, 6), SamplingParams(temperature=0, max_tokens=20, draft=False))
    steps, scheduler = drafting(perfect, 4)
    replies = serve(steps, scheduler, [off, Request("on", (5, 6), GREEDY)])
    assert sum(e.drafted for e in replies["off"].emissions) == 0 < sum(e.accepted for e in replies["on"].emissions)
    assert replies["off"].tokens == replies["on"].tokens[:20]
    steps, scheduler = drafting(perfect, 4)
    serve(steps, scheduler, [off])
    assert not steps.draft_calls


def test_without_a_head_nothing_is_drafted():
    steps = FakeSteps()
    serve(steps, Scheduler(steps, drafter=FixedDepth(4)), [Request("a", (5, 6), GREEDY)])
    assert not steps.draft_calls


def test_a_draft_call_that_fails_loses_drafts_and_nothing_else(caplog):
    request = Request("a", (5, 6), GREEDY)
    steps, scheduler = drafting(perfect, 4, faults=Faults(fail_drafts=frozenset({1, 3})))
    assert serve(steps, scheduler, [request])["a"].end == plain(request)
    lost = [record.getMessage() for record in caplog.records if "drafts were lost" in record.getMessage()]
    assert len(lost) == 2 and "draft call 1 fails" in lost[0]
    assert scheduler.status().draft_windows == steps.draft_calls - 2


def test_calls_that_go_on_failing_are_told_of_ever_more_rarely_and_their_time_is_known(caplog):
    class Timed(FixedDepth):
        calls = 0

        def note_draft(self, lanes, steps, ms):
            Timed.calls += 1
            assert lanes == 1 and 1 <= steps <= 4 and ms >= 0

    steps = FakeSteps(draft_depth=15, faults=Faults(fail_drafts=frozenset(range(100))))
    scheduler = Scheduler(steps, drafter=Timed(4))
    serve(steps, scheduler, [Request("a", (5, 6), GREEDY)])
    told = [record for record in caplog.records if "drafts were lost" in record.getMessage()]
    assert Timed.calls == steps.draft_calls and len(told) == steps.draft_calls.bit_length() < steps.draft_calls


@pytest.mark.parametrize("seed", range(3))
def test_replies_do_not_depend_on_the_policy_that_serves(seed):
    """A clock that jumps makes it draft now and then, so deep and so deep."""
    rng = np.random.default_rng(seed)
    requests = [random_request(rng, f"r{i}") for i in range(16)]
    steps = FakeSteps(lanes=4, draft_depth=6, head=guessing(seed))
    now_s = 0.0

    def clock():
        nonlocal now_s
        now_s += float(rng.exponential(0.01))
        return now_s

    scheduler = Scheduler(steps, drafter=policy_for(steps), clock=clock)
    for request in requests:
        scheduler.submit(request)
    replies = gather(e for e in _rounds(steps, scheduler, clock))
    assert {name: reply.end for name, reply in replies.items()} == {r.id: plain(r) for r in requests}
    assert scheduler.status().draft_windows


def _rounds(steps, scheduler, clock):
    while scheduler.has_work():
        yield from run_round(steps, scheduler, clock)


def test_drafts_that_the_round_contradicts_are_dropped_and_the_rest_is_kept():
    steps, scheduler = drafting(perfect, 6, max_rows=8)
    scheduler.submit(Request("a", (5, 6), GREEDY))
    list(run_round(steps, scheduler))
    (lane,) = scheduler._decoding()
    first, *rest = lane.held
    lane.hold(lane.held, lane.chances)
    lane.commit(first)
    assert lane.held == tuple(rest) and len(lane.chances) == len(rest)
    lane.commit((rest[0] + 1) % 64)
    assert lane.held == lane.chances == ()


def test_drafts_end_with_what_ends_the_reply():
    truth = plain(Request("a", (5, 6), GREEDY))[0]
    end = truth[7]
    assert end not in truth[:7]
    request = Request("a", (5, 6), SamplingParams(temperature=0, max_tokens=30, eos_token_ids=(end,)))
    steps, scheduler = drafting(perfect, 15)
    reply = serve(steps, scheduler, [request])["a"]
    assert reply.tokens == truth[:8] and reply.last.reason == "stop"
    assert scheduler.status().drafted == scheduler.status().accepted == (1,) * 7


def test_an_unlikely_head_is_not_asked_for_more_than_a_reply_can_take():
    steps, scheduler = drafting(perfect, 15)
    serve(steps, scheduler, [Request("a", (5, 6), SamplingParams(temperature=0, max_tokens=3))])
    assert scheduler.status().drafted == (1,)


@pytest.mark.parametrize("phase", ["filling", "drafted", "tested"])
def test_a_lane_that_is_cancelled_leaves_nothing_to_the_next(phase):
    wanted = plain(Request("b", (9, 8, 7), GREEDY))
    steps, scheduler = drafting(perfect, 4, lanes=1)
    scheduler.submit(Request("a", tuple(range(3, 43)), SamplingParams(temperature=0, max_tokens=60)))
    scheduler.config = EngineConfig(prefill_chunk=20)
    for _ in range({"filling": 1, "drafted": 2, "tested": 4}[phase]):
        list(run_round(steps, scheduler))
    assert [e.finish.reason for e in scheduler.cancel(["a"]) if e.finish] == ["abort"]
    assert serve(steps, scheduler, [Request("b", (9, 8, 7), GREEDY)])["b"].end == wanted


def test_a_cancel_from_a_sink_reaches_a_lane_that_has_just_drafted():
    steps = FakeSteps(draft_depth=15, head=perfect)
    engine = Engine(steps, drafter=FixedDepth(4))
    seen = []

    def sink(emission):
        seen.append(emission)
        if len(seen) == 2:
            engine.cancel("a")

    engine.submit(Request("a", (5, 6), SamplingParams(temperature=0, max_tokens=100)), sink)
    assert engine.run([Request("b", (5, 6), GREEDY)])["b"][-1].finish is not None
    assert seen[-1].finish.reason == "abort"


def test_an_output_that_does_not_answer_the_plan_is_an_error():
    steps, scheduler = drafting(perfect, 4)
    steps.draft = lambda plan: DraftOutput()
    scheduler.submit(Request("a", (5, 6), GREEDY))
    with pytest.raises(ValueError, match="0 chains, 1 were planned"):
        gather(serve_rounds(steps, scheduler))
