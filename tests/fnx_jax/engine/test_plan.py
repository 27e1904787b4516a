"""What a round holds: windows first, prompt rows after, and who gets them."""

from dataclasses import replace

import numpy as np

from fnx_jax.engine.fake import FakeSteps
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.request import Request, SamplingParams
from fnx_jax.engine.rounds import run_round
from fnx_jax.engine.scheduler import Scheduler

LONG = SamplingParams(max_tokens=40)


def request(name, length, **sampling):
    return Request(name, tuple(i % 60 for i in range(length)), replace(LONG, **sampling))


def planned(scheduler):
    scheduler.admit()
    planned = scheduler.plan()
    assert planned is not None
    return planned


def pieces(planned):
    """(request, prompt rows or 0, window rows or 0) of each segment."""
    return [(s.lane.request.id, len(s.tokens) * s.prompt, len(s.tokens) * (not s.prompt)) for s in planned.segments]


def rounds(steps, scheduler, count):
    return [emission for _ in range(count) for emission in run_round(steps, scheduler)]


def test_windows_come_before_prompt_rows_and_rows_stay_within_the_round():
    steps = FakeSteps(lanes=4, max_rows=32)
    scheduler = Scheduler(steps)
    for name in "ab":
        scheduler.submit(request(name, 5))
    rounds(steps, scheduler, 1)
    scheduler.submit(request("c", 20))
    scheduler.submit(request("d", 60))
    plan = planned(scheduler)
    assert pieces(plan) == [("a", 0, 1), ("b", 0, 1), ("c", 20, 0), ("d", 10, 0)]
    assert len(plan.plan.token_B) == 32


def test_prompt_is_drawn_at_its_last_row_only():
    steps = FakeSteps(lanes=1, max_rows=16)
    scheduler = Scheduler(steps, EngineConfig(prefill_chunk=6))
    scheduler.submit(request("a", 13, seed=3, choice=2))
    seen = []
    for _ in range(4):
        plan = planned(scheduler)
        seen.append([(draw.row, draw.position, draw.seed, draw.choice) for draw in plan.plan.draws])
        scheduler.conclude(plan, steps.round(plan.plan), 0.0)
    assert seen == [[], [], [(0, 13, 3, 2)], [(0, 14, 3, 2)]]


def test_history_is_newest_first_and_empty_before_the_start():
    steps = FakeSteps(lanes=1, max_rows=16, history=3)
    scheduler = Scheduler(steps, EngineConfig(prefill_chunk=2))
    scheduler.submit(Request("a", (7, 8, 9), LONG))
    plan = planned(scheduler)
    assert plan.plan.history_BN.tolist() == [[-1, -1, -1], [7, -1, -1]]
    scheduler.conclude(plan, steps.round(plan.plan), 0.0)
    assert planned(scheduler).plan.history_BN.tolist() == [[8, 7, -1]]


def test_prompt_scores_name_the_next_prompt_token():
    scheduler = Scheduler(FakeSteps(lanes=1, max_rows=16), EngineConfig(prefill_chunk=3))
    scheduler.submit(Request("a", (7, 8, 9, 10, 11), replace(LONG, prompt_logprobs=2)))
    plan = planned(scheduler)
    assert [(s.row, s.target, s.top) for s in plan.plan.scores] == [(0, 8, 2), (1, 9, 2), (2, 10, 2)]
    scheduler.conclude(plan, FakeSteps(lanes=1).round(plan.plan), 0.0)
    assert [(s.row, s.target) for s in planned(scheduler).plan.scores] == [(0, 11)]


def test_prefill_chunk_bounds_the_prompt_rows_of_a_round():
    scheduler = Scheduler(FakeSteps(lanes=2, max_rows=64), EngineConfig(prefill_chunk=24))
    scheduler.submit(request("a", 20))
    scheduler.submit(request("b", 20))
    assert pieces(planned(scheduler)) == [("a", 20, 0), ("b", 4, 0)]


def test_stall_rows_bound_prompt_rows_only_beside_replies():
    steps = FakeSteps(lanes=2, max_rows=64)
    scheduler = Scheduler(steps, EngineConfig(stall_rows=20))
    scheduler.submit(request("a", 50))
    assert pieces(planned(scheduler)) == [("a", 50, 0)]
    rounds(steps, scheduler, 1)
    scheduler.submit(request("b", 50))
    assert pieces(planned(scheduler)) == [("a", 0, 1), ("b", 20, 0)]


def test_measured_round_times_replace_stall_rows():
    steps = FakeSteps(lanes=3, max_rows=64)
    scheduler = Scheduler(steps, EngineConfig(stall_rows=20, max_prefill_stall_ms=50))

    def conclude(seconds):
        plan = planned(scheduler)
        scheduler.conclude(plan, steps.round(plan.plan), seconds)
        return pieces(plan)

    scheduler.submit(request("x", 5))
    assert [conclude(9.0), conclude(0.010)] == [[("x", 5, 0)], [("x", 0, 1)]]
    scheduler.cancel(["x"])
    scheduler.submit(request("a", 5))
    conclude(9.0)  # prompt rows alone: not what a reply would wait for
    scheduler.submit(request("b", 80))
    assert conclude(0.030) == [("a", 0, 1), ("b", 20, 0)]  # 1 ms a prompt row, beside 10 ms
    assert conclude(0.050) == [("a", 0, 1), ("b", 40, 0)]


def test_prompt_passed_over_goes_first_and_the_wait_is_bounded():
    steps = FakeSteps(lanes=4, max_rows=16, context=128)
    scheduler = Scheduler(steps, EngineConfig(prefill_chunk=2))
    for name in "abcd":
        scheduler.submit(request(name, 120))
    served = []
    for _ in range(60):
        plan = planned(scheduler)
        served.append(plan.segments[0].lane.request.id)
        assert len(plan.segments) == 1
        scheduler.conclude(plan, steps.round(plan.plan), 0.0)
    assert served[:14] == list("aaaaaaaabcdaaa")
    for name in "abcd":
        turns = [i for i, first in enumerate(served) if first == name]
        assert len(turns) > 4
        assert max(np.diff(turns)) <= 8 + 3, f"{name} waited too long"


def test_every_decoding_lane_has_a_row_in_every_round():
    steps = FakeSteps(lanes=8, max_rows=8, row_tile=4)
    scheduler = Scheduler(steps, drafts=lambda lane: (1, 2, 3, 4, 5))
    for i in range(8):
        scheduler.submit(request(str(i), 1 + i % 3))
    rounds(steps, scheduler, 3)
    plan = planned(scheduler)
    assert {segment.lane.index for segment in plan.segments} == set(range(8))
    assert len(plan.plan.token_B) == 8


def test_drafts_leave_a_tile_to_filling_prompts_and_never_cross_a_tile_border():
    steps = FakeSteps(lanes=3, max_rows=32, row_tile=8)
    scheduler = Scheduler(steps, drafts=lambda lane: (1,) * 30)
    scheduler.submit(request("a", 3))
    scheduler.submit(request("b", 3))
    rounds(steps, scheduler, 1)
    scheduler.submit(request("c", 60))
    plan = planned(scheduler)
    assert pieces(plan) == [("a", 0, 8), ("b", 0, 8), ("c", 16, 0)]
    assert plan.plan.speculative_B.tolist() == ([False] + [True] * 7) * 2 + [False] * 16


def test_drafts_stay_within_the_reply_and_the_wish_of_the_request():
    steps = FakeSteps(lanes=2, max_rows=32)
    scheduler = Scheduler(steps, drafts=lambda lane: (1, 2, 3))
    scheduler.submit(request("a", 3, max_tokens=3))
    scheduler.submit(request("b", 3, draft=False))
    rounds(steps, scheduler, 1)
    assert pieces(planned(scheduler)) == [("a", 0, 2), ("b", 0, 1)]


def test_plan_shares_no_memory_with_the_scheduler():
    steps = FakeSteps(lanes=2)
    scheduler = Scheduler(steps)
    scheduler.submit(request("a", 3))
    plan = planned(scheduler).plan
    before = plan.pages_LP.copy()
    scheduler.cancel(["a"])
    scheduler.submit(request("b", 60))
    scheduler.admit()
    np.testing.assert_array_equal(plan.pages_LP, before)


def test_a_prompt_runs_in_one_round_though_the_state_before_its_last_row_is_kept():
    steps = FakeSteps(lanes=1, slots=4)
    scheduler = Scheduler(steps, EngineConfig(prompt_cache_min_tokens=8))
    scheduler.submit(request("a", 20, max_tokens=1))
    plan = planned(scheduler)
    assert pieces(plan) == [("a", 20, 0)]
    assert plan.plan.speculative_B.tolist() == [False] * 19 + [True] and len(plan.plan.draws) == 1
    (last,) = scheduler.conclude(plan, steps.round(plan.plan), 0.0)
    assert last.finish and [entry.length for entry in scheduler._reuse.device.entries] == [19]
    assert (last.drafted, last.accepted) == (0, 0)


def test_a_last_row_that_begins_a_tile_has_a_round_of_its_own():
    steps = FakeSteps(lanes=2, slots=4, row_tile=16)
    scheduler = Scheduler(steps, EngineConfig(prompt_cache_min_tokens=8))
    scheduler.submit(request("a", 17))
    assert pieces(planned(scheduler)) == [("a", 16, 0)]
    rounds(steps, scheduler, 3)
    scheduler.submit(Request("b", (61, *range(16)), LONG))
    assert pieces(planned(scheduler)) == [("a", 0, 1), ("b", 17, 0)]


def test_a_prompt_that_keeps_nothing_leaves_no_row_open():
    scheduler = Scheduler(FakeSteps(lanes=1, slots=4), EngineConfig(prompt_cache_min_tokens=30))
    scheduler.submit(request("a", 20))
    assert not planned(scheduler).plan.speculative_B.any()
