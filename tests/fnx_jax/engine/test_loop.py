"""The engine on its thread and without: arrivals, leavers, failures, draining, sinks that misbehave."""

import logging
import threading

import numpy as np
import pytest

from fnx_jax.engine.fake import FakeSteps, Faults
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.request import EngineClosed, EngineError, QueueFull, Request, SamplingParams
from fnx_jax.engine.stop import StopStrings
from tests.fnx_jax.engine.support import gather, plain, random_request

WAIT_S = 20.0
"""How long a test waits for another thread before it fails; nothing is measured with it."""

FOREVER = SamplingParams(temperature=0, max_tokens=100)


class Inbox:
    """A sink that other threads can wait on."""

    def __init__(self, on_first=lambda: None):
        self.emissions, self.ended, self.on_first = [], threading.Event(), on_first

    def __call__(self, emission):
        self.emissions.append(emission)
        if len(self.emissions) == 1:
            self.on_first()
        if emission.finish:
            self.ended.set()

    @property
    def reply(self):
        assert self.ended.wait(WAIT_S), "no last emission"
        (reply,) = gather(self.emissions).values()
        return reply


class Gate:
    """Holds rounds: while it holds, each round needs a permit."""

    def __init__(self):
        self.permits, self.holding, self.waiting = threading.Semaphore(0), False, threading.Event()

    def __call__(self, number):
        if self.holding:
            self.waiting.set()
            assert self.permits.acquire(timeout=WAIT_S), "the gate was never opened"

    def hold(self):
        self.holding = True

    def open(self):
        self.holding = False
        self.permits.release(100)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open()


def submit(engine, *requests):
    inboxes = [Inbox() for _ in requests]
    for request, inbox in zip(requests, inboxes, strict=True):
        engine.submit(request, inbox)
    return inboxes


def held(engine, gate, *requests):
    """Submits requests and stops the engine inside the first round that holds any of them."""
    gate.hold()
    inboxes = submit(engine, *requests)
    assert gate.waiting.wait(WAIT_S)
    return inboxes


def closing(engine, gate, act):
    """Runs `act`, which closes the engine, on a thread; opens the gate once the engine is closed."""
    results = []
    thread = threading.Thread(target=lambda: results.append(act()))
    thread.start()
    for _ in range(int(WAIT_S * 1000)):
        if engine.status().closed:
            break
        thread.join(0.001)
    gate.open()
    thread.join()
    return results[0]


def idle(engine):
    status = engine.status()
    return (status.running, status.filling, status.waiting, status.pages_used) == (0, 0, 0, 0)


def workload(seed, count):
    rng = np.random.default_rng(seed)
    return [random_request(rng, f"r{i}") for i in range(count)]


def test_threads_that_submit_together_each_get_their_own_reply():
    requests, inboxes = workload(1, 24), {}
    with Engine(FakeSteps(lanes=3)) as engine:

        def client(mine):
            for request in mine:
                (inboxes[request.id],) = submit(engine, request)

        clients = [threading.Thread(target=client, args=(requests[i::4],)) for i in range(4)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        for request in requests:
            assert inboxes[request.id].reply.end == plain(request)
        assert idle(engine) and engine.failed is None


@pytest.mark.parametrize("threaded", [False, True])
def test_run_serves_more_requests_than_the_queue_holds(threaded):
    engine, requests = Engine(FakeSteps(lanes=2), EngineConfig(max_queue=0)), workload(2, 10)
    if threaded:
        engine.start()
    replies = engine.run(requests)
    assert list(replies) == [request.id for request in requests]
    for request in requests:
        assert gather(replies[request.id])[request.id].end == plain(request)
    assert idle(engine)
    engine.stop()


def test_run_checks_everything_before_it_starts():
    steps = FakeSteps(lanes=1)
    engine, good = Engine(steps), Request("a", (1,), SamplingParams(max_tokens=2))
    with pytest.raises(EngineError, match="prompt: empty"):
        engine.run([good, Request("b", ())])
    with pytest.raises(EngineError, match="'a' is being served"):
        engine.run([good, good])
    assert steps.rounds == 0 and idle(engine)
    assert len(engine.run([good])["a"]) == 2


def test_interrupted_run_leaves_nothing_behind():
    def interrupt(number):
        if number == 3:
            raise KeyboardInterrupt

    engine = Engine(FakeSteps(lanes=1, before=interrupt))
    with pytest.raises(KeyboardInterrupt):
        engine.run([Request("a", (1,), FOREVER), Request("b", (1,), FOREVER)])
    assert idle(engine) and engine.failed is None
    request = Request("a", (1,), SamplingParams(temperature=0, max_tokens=5))
    assert gather(engine.run([request])["a"])["a"].end == plain(request)


@pytest.mark.parametrize("threaded", [False, True])
def test_interrupt_between_two_deliveries_leaves_nobody_without_a_last_word(threaded, caplog):
    def interrupt(emission):
        if emission.finish and emission.finish.reason == "length":
            raise KeyboardInterrupt

    engine, sampling = Engine(FakeSteps()), SamplingParams(temperature=0, max_tokens=3)
    engine.submit(Request("a", (1,), sampling), interrupt)
    ended, running = submit(engine, Request("b", (1,), sampling), Request("c", (1,), FOREVER))
    with caplog.at_level(logging.ERROR):
        if threaded:
            engine.start()
        else:
            with pytest.raises(KeyboardInterrupt):
                engine.run([Request("d", (1,), FOREVER)])
        for inbox in (ended, running):
            assert inbox.reply.last.reason == "error" and "KeyboardInterrupt" in (inbox.reply.last.error or "")
            assert len(inbox.reply.tokens) == 2
    assert idle(engine) and (engine.failed is not None) == threaded
    engine.stop()


@pytest.mark.parametrize("phase", ["queued", "filling", "decoding", "inbox"])
def test_cancel_ends_a_request_in_any_phase_and_no_other(gate, phase):
    steps = FakeSteps(lanes=1 if phase == "queued" else 2, max_rows=8, row_tile=4, before=gate)
    other = Request("other", (5, 6, 7), SamplingParams(temperature=0, max_tokens=20))
    victim = Request("victim", (1,) * (40 if phase == "filling" else 2), FOREVER)
    with Engine(steps) as engine:
        if phase in ("queued", "inbox"):
            (neighbour,) = held(engine, gate, other)
            (inbox,) = submit(engine, victim)
        else:
            gate.holding, inbox = phase == "filling", Inbox(on_first=gate.hold)
            engine.submit(victim, inbox)
            assert gate.waiting.wait(WAIT_S)
            (neighbour,) = submit(engine, other)
        if phase == "queued":  # one round later the engine has seen it
            gate.waiting.clear()
            gate.permits.release()
            assert gate.waiting.wait(WAIT_S)
        status = engine.status()
        engine.cancel("victim")
        gate.open()
        assert inbox.reply.last.reason == "abort"
        assert len(inbox.reply.tokens) == (2 if phase == "decoding" else 0)  # the round that was held still counts
        assert neighbour.reply.end == plain(other)
        assert idle(engine)
        assert phase != "queued" or (status.waiting, status.running) == (1, 1)


def test_cancel_of_an_ended_or_unknown_request_does_nothing():
    request = Request("a", (1,), SamplingParams(temperature=0, max_tokens=3))
    with Engine(FakeSteps()) as engine:
        for _ in range(2):
            (inbox,) = submit(engine, request)
            assert inbox.reply.end == plain(request)
            engine.cancel("a")
            engine.cancel("nobody")


def test_submit_refuses_before_anything_is_queued(gate):
    with Engine(FakeSteps(lanes=1, before=gate), EngineConfig(max_queue=1)) as engine:
        held(engine, gate, Request("a", (1,), FOREVER))
        submit(engine, Request("b", (1,), FOREVER))
        sink = Inbox()
        for request, error in (
            (Request("c", (1,), FOREVER), QueueFull),
            (Request("c", (), FOREVER), EngineError),
            (Request("b", (1,), FOREVER), EngineError),
        ):
            with pytest.raises(error):
                engine.submit(request, sink)
        assert engine.status().waiting == 1 and not sink.emissions
        gate.open()


def test_sink_that_raises_loses_its_own_request_only(caplog):
    request = Request("good", (4, 5), SamplingParams(temperature=0, max_tokens=30))
    seen, ended = [], threading.Event()

    def broken(emission):
        seen.append(emission)
        if emission.finish:
            ended.set()
        raise RuntimeError("client gone")

    with caplog.at_level(logging.ERROR), Engine(FakeSteps()) as engine:
        engine.submit(Request("broken", (1,), FOREVER), broken)
        (inbox,) = submit(engine, request)
        assert inbox.reply.end == plain(request)
        assert ended.wait(WAIT_S)
        assert idle(engine) and engine.failed is None
    assert [emission.finish.reason for emission in seen if emission.finish] == ["abort"]
    assert len(seen) == 2


def test_sink_may_submit_and_cancel():
    second = Request("b", (3,), SamplingParams(temperature=0, max_tokens=4))
    inbox = Inbox()
    with Engine(FakeSteps()) as engine:

        def sink(emission):
            if emission.finish:
                engine.submit(second, inbox)
            else:
                engine.cancel("a")

        engine.submit(Request("a", (1,), FOREVER), sink)
        assert inbox.reply.end == plain(second)


@pytest.mark.parametrize("threaded", [False, True])
def test_failed_round_ends_everyone_and_the_engine(threaded, caplog):
    engine = Engine(FakeSteps(lanes=2, faults=Faults(fail_rounds=frozenset({3}))))
    requests = [Request(name, (1,), FOREVER) for name in "abc"]
    with caplog.at_level(logging.ERROR):
        if threaded:
            inboxes = submit(engine, *requests)
            engine.start()
            replies = [inbox.reply for inbox in inboxes]
        else:
            replies = [gather(emissions)[name] for name, emissions in engine.run(requests).items()]
    assert [len(reply.tokens) for reply in replies] == [3, 3, 0]
    assert {reply.last.reason for reply in replies} == {"error"}
    assert {reply.last.error for reply in replies} == {"the engine failed: RuntimeError: round 3 fails on purpose"}
    assert isinstance(engine.failed, RuntimeError)
    status = engine.status()
    assert status.closed and status.failed and idle(engine)
    with pytest.raises(EngineClosed, match="round 3"):
        engine.submit(Request("d", (1,)), Inbox())
    with pytest.raises(EngineClosed):
        engine.run([Request("d", (1,))])
    engine.stop()


def test_wrong_answer_of_the_device_fails_the_engine(caplog):
    class Short(FakeSteps):
        def round(self, plan):
            return type(super().round(plan))()

    engine = Engine(Short())
    with caplog.at_level(logging.ERROR):
        replies = engine.run([Request("a", (1,), FOREVER)])
    message = "the engine failed: ValueError: round: 0 entries in tokens, 1 were planned"
    assert gather(replies["a"])["a"].last.error == message


@pytest.mark.parametrize("threaded", [False, True])
def test_drain_finishes_the_admitted_and_ends_the_queued(threaded, gate):
    request = Request("a", (1,), SamplingParams(temperature=0, max_tokens=20))
    engine = Engine(FakeSteps(lanes=1, before=gate))
    if threaded:
        engine.start()
        running, queued = held(engine, gate, request, Request("b", (1,), FOREVER))
        assert closing(engine, gate, lambda: engine.drain(WAIT_S))
        assert running.reply.end == plain(request)
        assert (queued.reply.last.reason, queued.reply.tokens) == ("abort", ())
    else:
        assert engine.drain(WAIT_S)
    with pytest.raises(EngineClosed):
        engine.submit(request, Inbox())
    with pytest.raises(EngineClosed):
        engine.start()
    engine.stop()


def test_drain_ends_what_outlasts_it():
    now = [0.0]
    steps = FakeSteps(lanes=1, before=lambda _: now.__setitem__(0, now[0] + 1))
    engine = Engine(steps, clock=lambda: now[0])
    (inbox,) = submit(engine, Request("a", (1,), FOREVER))
    engine._turn()  # admitted before the drain begins
    assert not engine.drain(5.0)
    assert inbox.reply.last.reason == "abort" and len(inbox.reply.tokens) == 6
    assert idle(engine)


@pytest.mark.parametrize("threaded", [False, True])
def test_stop_ends_everyone_and_may_be_repeated(threaded, gate):
    engine = Engine(FakeSteps(lanes=1, before=gate))
    requests = [Request(name, (1,), FOREVER) for name in "abc"]
    if threaded:
        engine.start()
        inboxes = held(engine, gate, *requests)
        closing(engine, gate, engine.stop)
    else:
        inboxes = submit(engine, *requests)
        engine.stop()
    engine.stop()
    assert [inbox.reply.last.reason for inbox in inboxes] == ["abort"] * 3
    assert idle(engine) and engine.status().finished["abort"] == 3
    with pytest.raises(EngineClosed, match="stopped"):
        engine.submit(requests[0], Inbox())


def test_second_start_is_refused():
    with Engine(FakeSteps()) as engine, pytest.raises(EngineError, match="started before"):
        engine.start()


def test_records_reach_the_callback_and_the_log():
    seen = []
    engine = Engine(FakeSteps(), on_record=seen.append)
    engine.run([Request("a", (1,), SamplingParams(temperature=0, max_tokens=5))])
    assert seen == list(engine.records) and sum(len(tokens) for r in seen for _, tokens in r.committed) == 5


def test_stop_string_ends_a_reply_at_the_token_that_completes_it():
    class Words:
        def push(self, token):
            return f"{token} "

    request = Request("a", (1,), SamplingParams(temperature=0, max_tokens=40))
    tokens = plain(request)[0]
    stop = f"{tokens[6]} {tokens[7]}"
    engine = Engine(FakeSteps(), drafts=lambda lane: tokens[lane.replied :])
    for min_tokens, seen in ((0, 8), (7, 8), (8, 40)):
        sampling = SamplingParams(temperature=0, max_tokens=40, min_tokens=min_tokens)
        (emissions,) = engine.run([Request("a", (1,), sampling, StopStrings([stop], Words(), min_tokens))]).values()
        reply = gather(emissions)["a"]
        assert reply.tokens == tokens[:seen]
        assert reply.finish and reply.finish.stop_reason == (stop if seen == 8 else None)


def test_watcher_sees_every_token_once_and_its_error_is_its_own(caplog):
    class Watcher:
        def __init__(self, fails=False):
            self.seen, self.fails = [], fails

        def push(self, token):
            self.seen.append(token)
            if self.fails:
                raise UnicodeError("bad text")
            return None

    sampling, good, bad = SamplingParams(temperature=0, max_tokens=9), Watcher(), Watcher(fails=True)
    engine = Engine(FakeSteps(lanes=2), drafts=lambda lane: (1, 2, 3))
    replies = engine.run([Request("good", (1,), sampling, good), Request("bad", (1,), sampling, bad)])
    assert tuple(good.seen) == plain(Request("good", (1,), sampling))[0]
    finish = gather(replies["bad"])["bad"].last
    assert finish.reason == "error" and finish.error == "stop watcher failed: UnicodeError: bad text"
    assert engine.failed is None
