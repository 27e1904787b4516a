"""Requests that begin alike resume from kept states: same replies, no leaked page, and kept states give way."""

import logging
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fnx_jax.engine.fake import FakeSteps, Faults, PlanError
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.prompt_cache.disk import DiskChoice
from fnx_jax.engine.request import EngineError, Request, SamplingParams
from fnx_jax.engine.rounds import run_round, serve_rounds
from fnx_jax.engine.scheduler import Scheduler
from fnx_jax.engine.steps import ReuseError
from tests.fnx_jax.engine.support import gather, plain

EAGER = EngineConfig(prompt_cache_min_tokens=1)
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


def scheduler(steps: FakeSteps, config: EngineConfig = EAGER, **options) -> Scheduler:
    return Scheduler(steps, config, **options)


def serve(steps: FakeSteps, made: Scheduler, requests):
    """Serves requests together; every reply is the plain loop's, and every page is explained."""
    for request in requests:
        made.submit(request)
    replies = {}
    emissions = []
    while made.has_work():
        emissions += list(run_round(steps, made))
        made.verify()
    replies = gather(emissions)
    for request in requests:
        assert replies[request.id].end == plain(request), request
    return replies


def cached(replies) -> dict[str, int]:
    return {name: reply.emissions[-1].cached_tokens for name, reply in replies.items()}


def tokens(seed: int, length: int) -> tuple[int, ...]:
    return tuple(int(t) for t in np.random.default_rng(seed).integers(0, 64, length))


@pytest.mark.parametrize("length", [2, 7, 8, 9, 15, 16, 17, 40])
def test_a_prompt_sent_again_runs_its_last_row_only(length):
    steps = FakeSteps(slots=4)
    made = scheduler(steps)
    prompt = tokens(1, length)
    assert cached(serve(steps, made, [Request("a", prompt, GREEDY)])) == {"a": 0}
    assert cached(serve(steps, made, [Request("b", prompt, GREEDY)])) == {"b": length - 1}
    assert made.status().cache.hits == length - 1
    rows = [lane.prompt for record in made.records for lane in record.lanes if lane.request_id == "b" and lane.prompt]
    assert rows == [1]


def test_unlike_ends_of_one_beginning_do_not_meet():
    """Three streams behind one kept state at a page's end, at once: a shared page that one of them wrote would tell."""
    steps = FakeSteps(slots=4, lanes=4)
    made = scheduler(steps)
    head = tokens(2, 16)
    serve(steps, made, [Request("a", (*head, 1), GREEDY)])
    batch = [Request(f"r{i}", (*head, i, *tokens(i, i)), GREEDY) for i in range(2, 6)]
    assert set(cached(serve(steps, made, batch)).values()) == {16}


def test_a_page_shared_to_its_end_is_found_out(monkeypatch):
    """The planted mistake: the page of the last kept row is shared too where it is full."""
    steps = FakeSteps(slots=4, lanes=4)
    made = scheduler(steps)
    monkeypatch.setattr(made.pool, "shareable", lambda length: length // made.pool.page)
    head = tokens(2, 16)
    serve(steps, made, [Request("a", (*head, 1), GREEDY)])
    with pytest.raises(PlanError, match="another lane's page"):
        serve(steps, made, [Request(f"r{i}", (*head, i), GREEDY) for i in range(2, 6)])


def test_the_longest_beginning_wins_and_a_row_is_left_to_run():
    steps = FakeSteps(slots=8)
    made = scheduler(steps)
    prompt = tokens(3, 30)
    serve(steps, made, [Request("a", prompt, GREEDY, marks=(10, 20, 30))])
    assert made.status().cache.saved >= 4
    wanted = {"r12": (12, 10), "r21": (21, 20), "r20": (20, 10), "r30": (30, 29), "r35": (35, 30), "r9": (9, 0)}
    for name, (length, hit) in wanted.items():
        request = Request(name, (prompt + tokens(4, 9))[:length], GREEDY)
        # Nothing is kept by those that only ask, or the next would find it.
        found = made._reuse.find(request, 16)
        assert found is not None and found.length == hit, name


def test_a_reply_is_resumed_where_it_ended():
    steps = FakeSteps(slots=8)
    made = scheduler(steps, EngineConfig(prompt_cache_min_tokens=4))
    first = Request("a", tokens(5, 9), SamplingParams(temperature=0.0, max_tokens=11))
    reply = plain(first)[0]
    serve(steps, made, [first])
    turn = Request("b", first.prompt + reply + tokens(6, 5), GREEDY)
    assert cached(serve(steps, made, [turn])) == {"b": 9 + 11 - 1}


def test_a_short_reply_is_not_worth_a_state():
    steps = FakeSteps(slots=8)
    made = scheduler(steps, EngineConfig(prompt_cache_min_tokens=8))
    serve(steps, made, [Request("a", tokens(5, 20), GREEDY)])
    assert [entry.kind for entry in made._reuse.device.entries] == ["prompt"]


def test_prompts_that_part_late_leave_a_state_where_they_part():
    steps = FakeSteps(slots=8)
    made = scheduler(steps, EngineConfig(prompt_cache_min_tokens=4))
    head = tokens(7, 20)
    serve(steps, made, [Request("a", head + tokens(8, 9), GREEDY)])
    assert cached(serve(steps, made, [Request("b", head + tokens(9, 9), GREEDY)])) == {"b": 0}
    assert cached(serve(steps, made, [Request("c", head + tokens(10, 9), GREEDY)])) == {"c": 20}


def test_prompts_below_the_least_length_leave_nothing():
    steps = FakeSteps(slots=8)
    made = scheduler(steps, EngineConfig(prompt_cache_min_tokens=30))
    serve(steps, made, [Request("a", tokens(1, 30), GREEDY)])
    assert made.status().cache.saved == 0
    serve(steps, made, [Request("b", tokens(1, 31), GREEDY)])
    assert made.status().cache.saved == 1


def test_marks_keep_their_distance():
    steps = FakeSteps(slots=8)
    made = scheduler(steps, EngineConfig(prompt_cache_min_tokens=8))
    serve(steps, made, [Request("a", tokens(1, 31), GREEDY, marks=(7, 8, 15, 16, 22, 23))])
    assert sorted(entry.length for entry in made._reuse.device.entries) == [8, 16, 30]


@pytest.mark.parametrize("change", [dict(cache_prompt=False), dict(sampling=SamplingParams(prompt_logprobs=1))])
def test_who_may_not_resume_runs_every_row(change):
    steps = FakeSteps(slots=8)
    made = scheduler(steps)
    prompt = tokens(1, 30)
    serve(steps, made, [Request("a", prompt, GREEDY)])
    kept = made.status().cache.kept
    asked = {"sampling": GREEDY, **change}
    assert cached(serve(steps, made, [Request("b", prompt, **asked)])) == {"b": 0}
    assert made.status().cache.queries == len(prompt)
    assert "cache_prompt" not in change or made.status().cache.kept == kept


@pytest.mark.parametrize("marks", [(0,), (5,), (-1,)])
def test_marks_outside_of_the_prompt_are_refused(marks):
    with pytest.raises(EngineError, match="marks"):
        scheduler(FakeSteps(slots=1)).submit(Request("a", tokens(1, 4), GREEDY, marks=marks))


def test_kept_states_give_way_to_requests():
    """A pool of one window: every page that a kept state holds is one that a long request needs."""
    steps = FakeSteps(slots=8, lanes=2, pages=16)
    made = scheduler(steps)
    for i in range(6):
        serve(steps, made, [Request(f"r{i}", tokens(i, 20), GREEDY)])
    assert made.status().cache.kept > 1
    long = Request("long", tokens(99, 100), SamplingParams(temperature=0.0, max_tokens=128))
    serve(steps, made, [long])
    assert made.status().cache.evicted > 1


def test_nothing_is_driven_out_for_a_request_that_has_to_wait_all_the_same():
    steps = FakeSteps(slots=4, lanes=2, pages=16)
    made = scheduler(steps)
    serve(steps, made, [Request("a", tokens(1, 9), GREEDY)])
    kept = made.status().cache.kept
    made.submit(Request("b", tokens(2, 50), SamplingParams(temperature=0.0, max_tokens=20)))
    list(run_round(steps, made))
    made.submit(Request("c", tokens(3, 100), SamplingParams(temperature=0.0, max_tokens=28)))
    list(run_round(steps, made))
    assert made.queued() == ["c"] and made.status().cache.kept >= kept
    list(serve_rounds(steps, made))
    made.verify()


def test_a_conversation_lets_go_of_its_own_past_first():
    steps = FakeSteps(slots=2, context=256)
    made = scheduler(steps, EngineConfig(prompt_cache_min_tokens=3))
    other = tokens(50, 20)
    serve(steps, made, [Request("other", other, GREEDY)])
    history = tokens(1, 12)
    for turn in range(5):
        replies = serve(steps, made, [Request(f"t{turn}", history, GREEDY)])
        assert turn == 0 or cached(replies)[f"t{turn}"] > 0
        history += plain(Request("x", history, GREEDY))[0][:2] + tokens(60 + turn, 7)
    assert cached(serve(steps, made, [Request("again", other, GREEDY)])) == {"again": 19}


def test_a_failed_save_loses_reuse_only(caplog):
    steps = FakeSteps(slots=4, faults=Faults(fail_keeps=frozenset({1})))
    made = scheduler(steps)
    with caplog.at_level(logging.WARNING):
        serve(steps, made, [Request("a", tokens(1, 20), GREEDY, marks=(10,))])
    status = made.status().cache
    assert status.failed == 1 and "could not be kept" in caplog.text
    assert cached(serve(steps, made, [Request("b", tokens(1, 11), GREEDY)])) == {"b": 0}  # row 10's slot is lost


def test_a_failed_restore_starts_from_row_0(caplog):
    steps = FakeSteps(slots=4, faults=Faults(fail_restores=frozenset({0})))
    made = scheduler(steps)
    serve(steps, made, [Request("a", tokens(1, 20), GREEDY)])
    with caplog.at_level(logging.WARNING):
        assert cached(serve(steps, made, [Request("b", tokens(1, 20), GREEDY)])) == {"b": 0}
    assert made.status().cache.failed == 1 and "could not be restored" in caplog.text
    assert cached(serve(steps, made, [Request("c", tokens(1, 20), GREEDY)])) == {"c": 19}


@pytest.mark.parametrize("fails", range(5))
def test_a_failed_copy_loses_reuse_only(fails, monkeypatch):
    """Copies are made for each of the states that a prompt leaves, and for the one that the next resumes."""
    steps, calls = FakeSteps(slots=4), []
    made, whole = scheduler(steps), steps.copy_page

    def copy_page(source, target):
        calls.append(source)
        if len(calls) == fails + 1:
            raise ReuseError("no room")
        whole(source, target)

    monkeypatch.setattr(steps, "copy_page", copy_page)
    for turn in range(3):
        serve(steps, made, [Request(f"r{turn}", tokens(1, 20 + turn), GREEDY, marks=(10,))])
    status = made.status().cache
    assert status.failed == 1 and status.resumed and len(calls) > 5


def test_a_failed_copy_to_the_host_loses_reuse_only(monkeypatch):
    steps = FakeSteps(slots=1)
    made = scheduler(steps, EngineConfig(prompt_cache_min_tokens=9, prompt_cache_host_bytes=5000))

    def spill(slot, pages):
        raise ReuseError("no room")

    monkeypatch.setattr(steps, "spill", spill)
    for turn, seed in enumerate((1, 2, 1)):
        assert cached(serve(steps, made, [Request(f"r{turn}", tokens(seed, 20), GREEDY)])) == {f"r{turn}": 0}
    status = made.status().cache
    assert (status.failed, status.away, status.kept) == (2, 0, 1)


def test_states_that_another_engine_wrote_over_are_forgotten():
    steps = FakeSteps(slots=4)
    one, other = scheduler(steps), scheduler(steps)
    prompt = tokens(1, 20)
    for round_ in range(2):
        for made in (one, other):
            assert cached(serve(steps, made, [Request(f"r{round_}", prompt, GREEDY)])) == {f"r{round_}": 0}
    assert cached(serve(steps, other, [Request("own", prompt, GREEDY)])) == {"own": 19}


def test_an_interrupted_run_takes_all_that_was_kept_along():
    """A device that is interrupted in a round may have lost every page with it."""

    def interrupt(number):
        if number == 6:
            raise KeyboardInterrupt

    steps = FakeSteps(slots=4, before=interrupt)
    engine = Engine(steps, EAGER)
    prompt = tokens(1, 20)
    assert engine.run([Request("a", prompt, GREEDY)])["a"][-1].cached_tokens == 0
    with pytest.raises(KeyboardInterrupt):
        engine.run([Request("b", prompt, GREEDY)])
    for hit in (0, 19):
        assert engine.run([Request("c", prompt, GREEDY)])["c"][-1].cached_tokens == hit
    engine._scheduler.verify()


def test_a_cancelled_reply_leaves_no_state_of_its_end():
    steps = FakeSteps(slots=4)
    made = scheduler(steps)
    made.submit(Request("a", tokens(1, 9), SamplingParams(temperature=0.0, max_tokens=30)))
    for _ in range(6):
        list(run_round(steps, made))
    made.cancel(["a"])
    made.verify()
    assert [entry.length for entry in made._reuse.device.entries] == [8]


def test_a_state_that_had_to_leave_the_device_comes_back_from_the_host():
    steps = FakeSteps(slots=1)
    made = scheduler(steps, EngineConfig(prompt_cache_min_tokens=9, prompt_cache_host_bytes=5000))
    first, second = tokens(1, 20), tokens(2, 30)
    for turn, (prompt, hit) in enumerate([(first, 0), (second, 0), (first, 19), (second, 29), (first, 19)]):
        assert cached(serve(steps, made, [Request(f"r{turn}", prompt, GREEDY)])) == {f"r{turn}": hit}
    status = made.status().cache
    assert (status.kept, status.away, status.returned, status.failed) == (1, 1, 3, 0)


def test_a_failed_return_from_the_host_starts_from_row_0():
    steps = FakeSteps(slots=1, faults=Faults(fail_restores=frozenset({0})))
    made = scheduler(steps, EngineConfig(prompt_cache_min_tokens=9, prompt_cache_host_bytes=5000))
    for turn, seed in enumerate((1, 2, 1)):
        assert cached(serve(steps, made, [Request(f"r{turn}", tokens(seed, 20), GREEDY)])) == {f"r{turn}": 0}
    assert made.status().cache.failed == 1


@settings(max_examples=25, deadline=None)
@example(seed=135, slots=1, lanes=3, page=1, spare=0, apart=1, chunk=1, drafting=True, failing=False, host=5000, disk=0)
@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 5),
    lanes=st.integers(1, 4),
    page=st.sampled_from([1, 3, 8]),
    spare=st.integers(0, 40),
    apart=st.integers(1, 12),
    chunk=st.integers(1, 40),
    drafting=st.booleans(),
    failing=st.booleans(),
    host=st.sampled_from([0, 1500, 5000]),
    disk=st.sampled_from([0, 6000, 20000]),
)
def test_whatever_is_kept_and_let_go_no_reply_changes(
    seed, slots, lanes, page, spare, apart, chunk, drafting, failing, host, disk
):
    rng = np.random.default_rng(seed)
    chosen = lambda: frozenset(int(n) for n in rng.integers(0, 12, 3)) if failing else frozenset()  # noqa: E731
    steps = FakeSteps(
        lanes=lanes,
        slots=slots,
        page=page,
        pages=-(-128 // page) + spare,
        faults=Faults(fail_keeps=chosen(), fail_restores=chosen()),
    )
    folder = tempfile.TemporaryDirectory()
    choice = DiskChoice(Path(folder.name), disk, "f") if disk else None
    config = EngineConfig(
        prompt_cache_min_tokens=apart,
        prefill_chunk=chunk,
        prompt_cache_host_bytes=host,
        prompt_cache_disk=choice,
    )
    drafts = (lambda lane: rng.integers(0, 64, rng.integers(0, 9)).tolist()) if drafting else None
    made = scheduler(steps, config, drafts=drafts)
    stems = [tokens(int(rng.integers(3)), 40) for _ in range(3)]
    history: list[tuple[int, ...]] = [()]
    for batch in range(4):
        requests = []
        for i in range(3):
            stem = stems[int(rng.integers(3))][: int(rng.integers(1, 40))]
            past = history[int(rng.integers(len(history)))]
            prompt = (past or stem) + tokens(int(rng.integers(100)), int(rng.integers(0, 9)))
            marks = tuple(int(m) for m in rng.integers(1, len(prompt) + 1, 2))
            sampling = SamplingParams(seed=int(rng.integers(99)), max_tokens=int(rng.integers(0, 9)))
            requests.append(Request(f"{batch}.{i}", prompt[:100], sampling, marks=tuple(m for m in marks if m <= 100)))
        replies = serve(steps, made, requests)
        history += [r.prompt + replies[r.id].tokens for r in requests]
    made.pool.check(entry.pages for entry in made._reuse.device.entries)
    made.close(orderly=True)
    folder.cleanup()
