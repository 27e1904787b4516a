"""Whatever the schedule, each request gets the reply that a plain loop gives it, and nothing is left behind."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fnx_jax.engine import conclude
from fnx_jax.engine.conclude import Gain
from fnx_jax.engine.draws import DrawArrays
from fnx_jax.engine.fake import FakeSteps, Faults, PlanError
from fnx_jax.engine.lane import Lane
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.pages import PageError, PagePool, PageTable
from fnx_jax.engine.request import Budget, EngineError, QueueFull, Request, SamplingParams
from fnx_jax.engine.rounds import run_round, serve_rounds
from fnx_jax.engine.scheduler import Scheduler
from tests.fnx_jax.engine.support import gather, plain, random_request, serve

SCHEDULES = {
    "one lane": ({"lanes": 1}, {}),
    "one row a round": ({"lanes": 1, "max_rows": 1, "row_tile": 1}, {}),
    "many lanes": ({"lanes": 8, "max_rows": 64}, {}),
    "rows for lanes only": ({"lanes": 8, "max_rows": 8, "row_tile": 8}, {}),
    "small chunks": ({"lanes": 4}, {"prefill_chunk": 3}),
    "stall limit": ({"lanes": 4, "row_tile": 4}, {"stall_rows": 1}),
    "one window's pages": ({"lanes": 4, "pages": 16}, {}),
    "small pages, deep history": ({"lanes": 3, "page": 3, "history": 5}, {"passes": 1}),
    "no history": ({"lanes": 3, "history": 0}, {}),
}


def workload(seed, count):
    rng = np.random.default_rng(seed)
    return [random_request(rng, f"r{i}") for i in range(count)]


def perfect(lane: Lane):
    """Proposes what the reply will be."""
    return plain(lane.request)[0][lane.replied :]


def adversarial(lane: Lane):
    """Proposes a few right tokens, then wrong ones."""
    right = list(perfect(lane)[: lane.replied % 4])
    return right + [(token + 1) % 64 for token in perfect(lane)[len(right) :]] + [0] * 9


def drafter(seed):
    rng = np.random.default_rng(seed)
    return lambda lane: rng.integers(0, 64, rng.integers(0, 12)).tolist()


@pytest.mark.parametrize("name", SCHEDULES)
def test_replies_do_not_depend_on_the_schedule(name):
    options, config = SCHEDULES[name]
    steps, requests = FakeSteps(**options), workload(1, 16)
    replies = serve(steps, Scheduler(steps, EngineConfig(**config)), requests)
    for request in requests:
        assert replies[request.id].end == plain(request), request


@pytest.mark.parametrize(
    ("drafts", "kept"),
    [(perfect, True), (adversarial, True), (drafter(3), False)],
    ids=["perfect", "adversarial", "random"],
)
def test_replies_do_not_depend_on_drafts(drafts, kept):
    steps, requests = FakeSteps(lanes=4, max_rows=64), workload(2, 16)
    scheduler = Scheduler(steps, drafts=drafts)
    replies = serve(steps, scheduler, requests)
    for request in requests:
        assert replies[request.id].end == plain(request), request
    assert any(rows.verify for record in scheduler.records for rows in record.lanes)
    assert not kept or any(len(tokens) > 1 for record in scheduler.records for _, tokens in record.committed)


def test_drafts_save_rounds_where_they_are_right():
    counts = []
    for drafts in (None, perfect):
        steps = FakeSteps(lanes=1, max_rows=32)
        serve(
            steps, Scheduler(steps, drafts=drafts), [Request("a", (5, 6), SamplingParams(temperature=0, max_tokens=30))]
        )
        counts.append(steps.rounds)
    assert counts == [30, 3]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lanes=st.integers(1, 6),
    extra=st.integers(0, 40),
    row_tile=st.sampled_from([1, 4, 16]),
    page=st.integers(1, 20),
    chunk=st.integers(1, 40),
    stall=st.integers(1, 20),
    spare_pages=st.integers(0, 30),
    drafting=st.booleans(),
    leaving=st.sets(st.integers(0, 8), max_size=4),
)
def test_late_arrivals_and_leavers_change_no_reply(
    seed, lanes, extra, row_tile, page, chunk, stall, spare_pages, drafting, leaving
):
    rng = np.random.default_rng(seed)
    steps = FakeSteps(
        lanes=lanes, max_rows=lanes + extra, row_tile=row_tile, page=page, pages=-(-128 // page) + spare_pages
    )
    config = EngineConfig(prefill_chunk=chunk, stall_rows=stall)
    scheduler = Scheduler(steps, config, drafts=drafter(seed) if drafting else None)
    requests = [random_request(rng, f"r{i}") for i in range(9)]
    arrival = sorted(int(r) for r in rng.integers(0, 40, len(requests)))
    leave = {arrival[i] + int(rng.integers(0, 30)): f"r{i}" for i in leaving}
    emissions, number = [], 0
    while scheduler.has_work() or number <= 70:
        for request, when in zip(requests, arrival, strict=True):
            if when == number:
                scheduler.submit(request)
        emissions += scheduler.cancel({leave.get(number, "nobody")})
        emissions += run_round(steps, scheduler)
        scheduler.verify()
        number += 1
    replies = gather(emissions)
    assert scheduler.pool.used == 0
    for request in requests:
        reply, wanted = replies[request.id], plain(request)
        if reply.last.reason == "abort":
            assert request.id in leave.values()
            assert wanted[0][: len(reply.tokens)] == reply.tokens
        else:
            assert reply.end == wanted


def test_every_token_is_in_exactly_one_record():
    steps, requests = FakeSteps(lanes=3, max_rows=48), workload(4, 20)
    scheduler = Scheduler(steps, drafts=drafter(5))
    replies = serve(steps, scheduler, requests)
    recorded: dict[str, tuple[int, ...]] = {request.id: () for request in requests}
    for number, record in enumerate(scheduler.records):
        assert record.number == number
        assert len(dict(record.committed)) == len(record.committed)
        for request_id, tokens in record.committed:
            recorded[request_id] += tokens
    assert recorded == {request_id: reply.tokens for request_id, reply in replies.items()}
    tiles = [tile for record in scheduler.records for tile in record.tiles]
    assert any(tile.shared and tile.mixed for tile in tiles)


def test_status_counts_what_the_replies_hold():
    steps, requests = FakeSteps(lanes=3), workload(6, 12)
    scheduler = Scheduler(steps)
    replies = serve(steps, scheduler, requests)
    status = scheduler.status()
    assert status.prompt_tokens == sum(len(request.prompt) for request in requests)
    assert status.generation_tokens == sum(len(reply.tokens) for reply in replies.values())
    assert status.rounds == steps.rounds
    assert status.rows == sum(record.rows for record in scheduler.records)
    assert (status.running, status.filling, status.waiting, status.pages_used) == (0, 0, 0, 0)
    reasons = Counter(reply.finish.reason for reply in replies.values() if reply.finish)
    assert status.finished == {"stop": 0, "length": 0, "abort": 0, "error": 0, **reasons}


def test_status_tells_decoding_from_filling_and_waiting():
    steps = FakeSteps(lanes=2, max_rows=16, page=8, pages=32)
    scheduler = Scheduler(steps)
    for name, length in (("a", 9), ("b", 60), ("c", 5)):
        scheduler.submit(Request(name, (1,) * length, SamplingParams(max_tokens=20)))
    list(run_round(steps, scheduler))
    status = scheduler.status()
    assert (status.running, status.filling, status.waiting) == (1, 1, 1)
    assert (status.pages_used, status.pages) == (4 + 10, 32)


def test_requests_start_in_order_of_arrival_even_where_a_later_one_would_fit():
    steps = FakeSteps(lanes=3, page=8, pages=10)
    scheduler = Scheduler(steps)
    for name, length in (("a", 50), ("big", 40), ("small", 2)):
        scheduler.submit(Request(name, (1,) * length, SamplingParams(max_tokens=6)))
    list(run_round(steps, scheduler))
    assert scheduler.queued() == ["big", "small"]
    gather(serve_rounds(steps, scheduler))


def test_admitted_request_holds_the_pages_of_its_longest_reply_from_the_start():
    steps = FakeSteps(lanes=2, page=8, pages=16)
    scheduler = Scheduler(steps)
    scheduler.submit(Request("a", (1,) * 9, SamplingParams(max_tokens=1000)))
    scheduler.admit()
    assert scheduler.pool.used == 16


def test_queue_is_bounded_and_ids_are_unique():
    steps = FakeSteps(lanes=1)
    scheduler = Scheduler(steps, EngineConfig(max_queue=2))
    sampling = SamplingParams(max_tokens=3)
    for name in "abc":
        scheduler.submit(Request(name, (1,), sampling))
    with pytest.raises(QueueFull, match="3 requests"):
        scheduler.submit(Request("d", (1,), sampling))
    with pytest.raises(EngineError, match="'b' is being served"):
        scheduler.submit(Request("b", (1,), sampling))
    assert scheduler.live() == ["a", "b", "c"]
    gather(serve_rounds(steps, scheduler))
    scheduler.submit(Request("b", (1,), sampling))


def test_refused_request_touches_nothing():
    steps = FakeSteps(lanes=1, context=16)
    scheduler = Scheduler(steps)
    with pytest.raises(EngineError, match="context of 16"):
        scheduler.submit(Request("long", (1,) * 16))
    assert not scheduler.has_work()
    request = Request("a", (1,) * 15, SamplingParams(temperature=0, max_tokens=9))
    (reply,) = serve(steps, scheduler, [request]).values()
    assert reply.end == plain(request, context=16)
    assert len(reply.tokens) == 1 and reply.finish and reply.finish.reason == "length"


def test_timing_splits_queue_prompt_and_reply():
    now = [0.0]
    steps = FakeSteps(lanes=1, max_rows=16, before=lambda _: now.__setitem__(0, now[0] + 1))
    scheduler = Scheduler(steps, EngineConfig(prefill_chunk=5), clock=lambda: now[0])
    sampling = SamplingParams(max_tokens=4)
    scheduler.submit(Request("a", (1,) * 10, sampling))
    scheduler.submit(Request("b", (1,) * 15, sampling))
    replies = gather(serve_rounds(steps, scheduler))
    timings = {name: reply.finish.timing for name, reply in replies.items() if reply.finish}
    assert [(t.queue_s, t.prefill_s, t.decode_s) for t in timings.values()] == [(0, 2, 3), (5, 3, 3)]


@pytest.mark.parametrize("rounds_before", [0, 1, 4, 9])
def test_cancelled_request_ends_once_with_its_time_and_frees_its_pages(rounds_before):
    steps = FakeSteps(lanes=1, max_rows=16)
    scheduler = Scheduler(steps, EngineConfig(prefill_chunk=4))
    scheduler.submit(Request("a", (1,) * 16, SamplingParams(max_tokens=50)))
    scheduler.submit(Request("b", (1,) * 16, SamplingParams(max_tokens=50)))
    for _ in range(rounds_before):
        list(run_round(steps, scheduler))
    ended = scheduler.cancel({"a", "unknown"})
    assert [(e.request_id, e.tokens, e.finish.reason) for e in ended if e.finish] == [("a", (), "abort")]
    assert scheduler.cancel({"a"}) == []
    assert scheduler.pool.used == 0 and scheduler.live() == ["b"]
    scheduler.verify()


def test_row_that_is_not_finite_ends_its_own_request_only():
    steps = FakeSteps(lanes=3, faults=Faults(nonfinite_tokens=frozenset({63})))
    requests = [replace(request, prompt=tuple(t % 63 for t in request.prompt)) for request in workload(7, 12)]
    requests = [replace(r, sampling=replace(r.sampling, logit_bias=((63, -np.inf),))) for r in requests]
    bad = Request("bad", (4, 5, 63, 6), SamplingParams(max_tokens=5))
    scored = Request("scored", (4, 63, 5, 6), SamplingParams(max_tokens=0, prompt_logprobs=0))
    replies = serve(steps, Scheduler(steps), [*requests[:6], bad, scored, *requests[6:]])
    for name, position in (("bad", 3), ("scored", 1)):
        finish = replies[name].finish
        assert finish and finish.reason == "error" and f"position {position} are non-finite" in (finish.error or "")
        assert replies[name].tokens == ()
    for request in requests:
        assert replies[request.id].end == plain(request)


def test_reply_keeps_the_tokens_before_a_row_that_is_not_finite():
    script = {4: 20, 20: 21, 21: 63}
    steps = FakeSteps(
        lanes=1, script=lambda tokens: script.get(tokens[-1]), faults=Faults(nonfinite_tokens=frozenset({63}))
    )
    request = Request("a", (4,), SamplingParams(temperature=0, max_tokens=9))
    for drafts in (None, lambda lane: (20, 21, 63, 5)[lane.replied :]):
        (reply,) = serve(steps, Scheduler(steps, drafts=drafts), [request]).values()
        assert reply.tokens == (20, 21, 63)
        assert reply.finish and reply.finish.reason == "error" and "position 3 " in (reply.finish.error or "")


def test_failed_admission_ends_its_own_request_only(monkeypatch):
    original = Lane.__init__

    def fails(self, index, order, waiting, *rest):
        if waiting.request.id == "r1":
            raise MemoryError("no room")
        original(self, index, order, waiting, *rest)

    monkeypatch.setattr(Lane, "__init__", fails)
    steps, requests = FakeSteps(lanes=1), workload(8, 4)
    replies = serve(steps, Scheduler(steps), requests)
    finish = replies["r1"].finish
    assert finish and finish.reason == "error" and finish.error == "not started: MemoryError: no room"
    for request in requests:
        assert request.id == "r1" or replies[request.id].end == plain(request)


def test_requests_that_wait_for_lost_pages_are_an_error_and_not_a_loop():
    steps = FakeSteps(lanes=1)
    scheduler = Scheduler(steps)
    scheduler.pool.alloc(9)
    scheduler.submit(Request("a", (1,), SamplingParams(max_tokens=100)))
    with pytest.raises(PageError, match="1 requests wait, no lane is taken, 9 pages"):
        list(serve_rounds(steps, scheduler))


def test_failed_round_leaves_every_request_to_be_ended_by_fail():
    steps = FakeSteps(lanes=2, faults=Faults(fail_rounds=frozenset({2})))
    scheduler = Scheduler(steps)
    for request in workload(9, 5):
        scheduler.submit(replace(request, sampling=replace(request.sampling, max_tokens=20, min_tokens=20)))
    emissions = []
    with pytest.raises(RuntimeError, match="on purpose"):
        for emission in serve_rounds(steps, scheduler):
            emissions.append(emission)
    replies = gather(emissions + scheduler.fail("device lost"))
    assert {reply.finish.error for reply in replies.values() if reply.finish} == {"device lost"}
    assert len(replies) == 5 and not scheduler.has_work() and scheduler.pool.used == 0


def test_nothing_is_left_after_200_requests_that_leave_and_fail_in_every_phase(monkeypatch):
    rng, original = np.random.default_rng(10), Lane.__init__

    def sometimes(self, *arguments):
        if rng.random() < 0.05:
            raise MemoryError("no room")
        original(self, *arguments)

    monkeypatch.setattr(Lane, "__init__", sometimes)
    phases: Counter[str] = Counter()
    submitted, emissions, steps, scheduler = 0, [], None, None
    while submitted < 200 or (scheduler and scheduler.has_work()):
        if steps is None or scheduler is None:  # after a failed round the device is lost: a new one
            faults = Faults(frozenset({int(rng.integers(20, 150))}), nonfinite_tokens=frozenset({7}))
            steps = FakeSteps(lanes=3, max_rows=20, pages=40, faults=faults)
            scheduler = Scheduler(steps, EngineConfig(prefill_chunk=7), drafts=drafter(submitted))
        if submitted < 200 and rng.random() < 0.4:
            scheduler.submit(random_request(rng, f"r{submitted}"))
            submitted += 1
        if scheduler.has_work() and rng.random() < 0.08:
            victim = str(rng.choice(scheduler.live()))
            lane = next((lane for lane in scheduler._running() if lane.request.id == victim), None)
            phases["queued" if lane is None else "filling" if lane.filling else "decoding"] += 1
            emissions += scheduler.cancel({victim})
        try:
            for emission in run_round(steps, scheduler):
                emissions.append(emission)
                phases[emission.finish.error[:11] if emission.finish and emission.finish.error else "fine"] += 1
        except RuntimeError:
            phases["round"] += 1
            emissions += scheduler.fail("device lost")
            assert scheduler.pool.used == 0
            scheduler = None
        else:
            scheduler.verify()
    replies = gather(emissions)
    assert len(replies) == 200 and all(reply.finish for reply in replies.values())
    assert scheduler is None or scheduler.pool.used == 0
    assert set(phases) >= {"queued", "filling", "decoding", "not started", "the model's", "round"}, phases


def keep_all(segment, drawn):
    """A twin of the accept walk that keeps every draft."""
    end = [segment.lane.commit(result.token) for result in drawn][-1]
    segment.lane.filled += segment.drafts
    return Gain(tuple(r.token for r in drawn), tuple(r.logprobs for r in drawn if r.logprobs), end)


@pytest.mark.parametrize(
    ("owner", "name", "twin"),
    [
        (PageTable, "clear", lambda self, lane: None),
        (PagePool, "alloc", lambda self, count: tuple(range(count))),
        (Lane, "pending", property(lambda self: tuple(self.tokens[-1:]))),
        (conclude, "_accept", keep_all),
        (DrawArrays, "commit", lambda self, token: None),
    ],
    ids=["page table not cleared", "pages given twice", "dictated rows forgotten", "drafts kept", "counts not kept"],
)
def test_control_faults_of_the_scheduler_do_not_pass_unnoticed(monkeypatch, owner, name, twin):
    def run():
        steps, requests = FakeSteps(lanes=3), workload(11, 12)
        scheduler = Scheduler(steps, drafts=drafter(1))
        replies = serve(steps, scheduler, requests)
        replies |= serve(steps, scheduler, [Request("whole", (1, 3), SamplingParams(max_tokens=1000))])
        requests.append(Request("bounded", (1, 3), SamplingParams(), budget=Budget(4, 60, (59, 60, 58))))
        replies |= serve(steps, scheduler, requests[-1:])
        for request in requests:
            assert replies[request.id].end == plain(request)

    run()
    monkeypatch.setattr(owner, name, twin)
    with pytest.raises((PlanError, ValueError, AssertionError)):
        run()
