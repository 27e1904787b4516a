"""The fault runs' own parts, against a server without a device: requests that do not run end the wait for them."""

from types import SimpleNamespace
from typing import Any

import pytest

from experiments import faults
from experiments.faults import CASES, NotRunning, Requests, run_case
from tests.fnx_jax.serve.support import running


def test_a_refused_request_ends_the_wait():
    with running(context=64) as server:
        requests = Requests(server.url)
        with pytest.raises(NotRunning, match="a request ended before both ran: .*400"):
            requests.wait_running()


def test_requests_that_never_run_end_the_wait():
    with running() as server:
        server.script.say(None)
        server.script.gate.clear()
        requests = Requests(server.url)
        with pytest.raises(NotRunning, match="do not run after 0 s"):
            requests.wait_running(timeout_s=0.0)


def test_a_case_whose_requests_do_not_run_is_wrong_and_sends_no_signal(monkeypatch):
    def never(requests):
        raise NotRunning("they do not")

    monkeypatch.setattr(Requests, "wait_running", never)
    pair: Any = SimpleNamespace(url="http://127.0.0.1:9")
    assert run_case(next(case for case in CASES if case.busy), pair).wrong == ["they do not"]


def test_a_server_that_is_gone_ends_the_wait():
    with pytest.raises(NotRunning, match="/metrics"):
        faults.Requests("http://127.0.0.1:9").wait_running()
