"""Rank 0's server fails what runs as soon as a rank is lost, even while a round hangs."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest

from checkpoints.commands import DEMO
from fnx_jax.ranks.errors import RankLost
from fnx_jax.ranks.group import Group
from fnx_jax.serve.errors import ApiError
from fnx_jax.serve.lifecycle import SIGNALS
from fnx_jax.serve.load import ModelSettings
from fnx_jax.serve.ranks.following import Following
from fnx_jax.serve.ranks.leading import Leading, LedEngine, run_leading
from fnx_jax.serve.runner import DEVICE, OK, ServerRun
from fnx_jax.serve.settings import ServerSettings
from tests.fnx_jax.ranks.support import group
from tests.fnx_jax.serve.support import Script, events, fake_model, wait_for


@pytest.fixture
def led():
    """A server that is ready, its script, the leader it believes in, and the code it ends with."""
    script, leader, codes = Script(), SimpleNamespace(lost=None), []
    script.say(None)

    def load(start):
        model = fake_model(script, start)
        return replace(model, engine=LedEngine(model.engine, leader))

    run = ServerRun(ServerSettings(port=0, quiet=True), load, say=lambda line: None)
    thread = threading.Thread(target=lambda: codes.append(run.run()))
    thread.start()
    assert run.ready.wait(20)
    yield run, script, leader, lambda: thread.join(20) or codes
    script.gate.set()
    run.stop()
    thread.join(20)


def test_a_hanging_round_keeps_no_reply_from_failing(led):
    run, script, leader, ended = led
    script.gate.clear()
    with httpx.Client(base_url=run.url, timeout=20) as http, ThreadPoolExecutor(2) as pool:
        whole = pool.submit(http.post, "/v1/completions", json={"prompt": "a"})
        streamed = pool.submit(http.post, "/v1/completions", json={"prompt": "b", "stream": True})
        wait_for(lambda: len(script.requests) == 2 and script.begun > 0)
        leader.lost = "rank 1 is lost: no sign of life in time"
        assert whole.result().status_code == 500
        (error,) = events(streamed.result().text)
        assert error["error"]["code"] == 500 and "rank 1 is lost" in error["error"]["message"]
    assert ended() == [DEVICE]


def test_health_is_503_from_the_loss_on(led):
    run, _, leader, ended = led
    assert httpx.get(f"{run.url}/health").status_code == 200
    leader.lost = "rank 1 is lost"
    with pytest.raises(ApiError) as refused:
        run.service.ready()  # what /health answers by
    assert refused.value.status == 503
    assert ended() == [DEVICE]


def test_a_process_that_cannot_end_by_itself_leaves_with_the_code_of_a_lost_device():
    left, code = threading.Event(), []
    leading = Leading(Group("127.0.0.1", 4000, 2, 0), ModelSettings(".."), 0, lambda c: code.append(c) or left.set())
    leading._lose("rank 1 is lost")
    assert left.wait(10) and code == [DEVICE]


@pytest.fixture
def signals():
    """Keeps the handlers that a run puts in the place of these."""
    kept = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_a_stop_signal_to_one_ends_all_in_order_while_another_is_missing(signals):
    zero, settings, codes = group(ranks=4), ModelSettings(DEMO), []
    leading = Leading(zero, settings, 0)
    http = ServerSettings(port=0, quiet=True)
    serving = threading.Thread(
        target=lambda: codes.append(run_leading(leading, http, lambda start: leading.open(), ()))
    )
    serving.start()
    following = Following(replace(zero, rank=1), settings, 0, ((RankLost, DEVICE),), quiet=True)

    def stop() -> None:
        wait_for(lambda: leading.leader is not None and 1 in leading.leader._links and following._link is not None)
        following._ask(signal.SIGTERM)

    threading.Thread(target=stop).start()
    assert following.run() == OK
    serving.join(20)
    assert codes == [OK]
