"""A server's life: bound before it is loaded, ready after, drained at the end, and the exit code of each end."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fnx_jax.engine.fake import Faults
from fnx_jax.serve.lifecycle import StopSignals
from fnx_jax.serve.runner import CHECKPOINT, DEVICE, DOES_NOT_FIT, OK, USAGE, ServerRun
from fnx_jax.serve.settings import ServerSettings
from tests.fnx_jax.serve.support import Script, events, fake_model, running, wait_for

ROOT = Path(__file__).parents[3]
QUIET = ServerSettings(port=0, quiet=True)


class Broken(Exception):
    """A loader's fault."""


class TooLarge(Exception):
    """Another."""


def code_of(load, settings: ServerSettings = QUIET) -> tuple[int, list[str]]:
    said: list[str] = []
    codes = [(Broken, CHECKPOINT), (TooLarge, DOES_NOT_FIT)]
    return ServerRun(settings, load, codes, said.append).run(), said


@pytest.mark.parametrize(
    ("fault", "code"), [(Broken("tensor x is missing"), CHECKPOINT), (TooLarge("80 GiB"), DOES_NOT_FIT)]
)
def test_loader_faults_have_their_exit_code(fault, code):
    def load(start):
        raise fault

    got, said = code_of(load)
    assert got == code and str(fault) in said[-1]


def test_other_loader_faults_are_the_devices():
    assert code_of(lambda start: 1 / 0)[0] == DEVICE


def test_only_signals_count_as_the_second_signal():
    left: list[int] = []
    signals = StopSignals(left.append)
    signals.asked.set()  # somebody else's wish, as that of another process that got the same Ctrl-C
    signals.ask(signal.SIGINT)
    assert not left
    signals.ask(signal.SIGINT)
    assert left == [128 + signal.SIGINT]


def test_a_taken_port_is_a_usage_fault():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = ServerSettings(port=taken.getsockname()[1])
        code, said = code_of(lambda start: pytest.fail("loaded"), settings)
    assert code == USAGE and str(settings.port) in said[-1]


def test_a_model_that_does_not_fit_its_tokenizer_is_refused():
    model = fake_model(Script())

    code, said = code_of(lambda start: replace(model, vocabulary=10))
    model.engine.stop()
    assert code == DEVICE and "tokenizer" in said[-1]


def test_everything_answers_503_until_the_model_is_loaded():
    go, said, script = threading.Event(), [], Script()

    def load(start):
        go.wait()
        return fake_model(script, start)

    run = ServerRun(ServerSettings(port=0, api_keys=("k",)), load, say=said.append)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run.run()))
    thread.start()
    assert run.bound.wait(10)
    with httpx.Client(base_url=run.url, headers={"Authorization": "Bearer k"}) as http:
        for path in ("/health", "/ping", "/v1/models", "/v1/server_info"):
            response = http.get(path)
            assert response.status_code == 503 and response.headers["retry-after"]
        body = {"messages": [{"role": "user", "content": "x"}]}
        fault = http.post("/v1/chat/completions", json=body)
        assert (fault.status_code, fault.json()["error"]["type"]) == (503, "ServiceUnavailableError")
        assert http.get("/metrics").status_code == http.get("/version").status_code == 200
        go.set()
        assert run.ready.wait(10)
        health = http.get("/health")
        assert (health.status_code, health.content) == (200, b"")
        info = http.get("/v1/server_info").json()
        assert info["checkpoint_digest"] == "d1" and info["settings"]["api_keys"] == 1
        assert '"k"' not in json.dumps(info)
        script.say("</think>x")
        assert http.post("/v1/chat/completions", json=body).is_success
    run.stop()
    thread.join(10)
    assert codes == [OK]
    assert said[0].startswith(f"Listening on {run.url}")
    assert f"tiny at {run.url}/v1" in said[-1] and "curl" in said[-1]


def test_a_stop_while_loading_ends_at_once():
    go = threading.Event()

    def load(start):
        go.wait()
        raise Broken

    run = ServerRun(QUIET, load)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run.run()))
    thread.start()
    assert run.bound.wait(10)
    run.stop()
    thread.join(10)
    assert codes == [OK] and run.loading
    go.set()


def test_a_bind_for_all_without_a_key_is_warned_of():
    _, said = code_of(lambda start: 1 / 0, ServerSettings(host="0.0.0.0", port=0))
    assert any("no API key" in line for line in said)


def test_a_lost_device_fails_every_request_and_the_process():
    script, said = Script(), []
    script.say(None)
    holder = []

    def load(start):
        holder.append(fake_model(script, start, faults=Faults(fail_rounds=frozenset({3}))))
        return holder[0]

    run = ServerRun(QUIET, load, say=said.append)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run.run()))
    thread.start()
    assert run.ready.wait(10)
    with httpx.Client(base_url=run.url) as http:
        wanted = {"prompt": [5], "max_tokens": 50, "ignore_eos": True}
        response = http.post("/v1/completions", json=wanted)
        assert response.status_code == 500 and "on purpose" in response.json()["error"]["message"]
        with pytest.raises(httpx.HTTPError):
            assert http.get("/health").status_code == 503
            thread.join(10)
            http.get("/health")
    thread.join(10)
    assert codes == [DEVICE] and "device was lost" in said[-1]


def test_draining_finishes_what_runs_and_refuses_what_comes():
    with running() as server:
        server.script.gate.clear()
        server.script.say("</think>Hello")
        got: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: got.append(server.chat()))
        asking.start()
        wait_for(lambda: server.script.begun == 1)
        server.run.stop()
        wait_for(lambda: server.run.service.state == "draining")
        assert server.http.get("/health").status_code == 503
        assert server.chat().status_code == 503
        server.script.gate.set()
        asking.join(10)
        assert got[0].json()["choices"][0]["message"]["content"] == "Hello"


@contextmanager
def process(drain_s: float, round_s: float = 0.02) -> Iterator[tuple[subprocess.Popen, httpx.Client]]:
    """A server in a process of its own, ready."""
    command = [sys.executable, "-m", "tests.fnx_jax.serve.served", str(drain_s), str(round_s)]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "")
        url = next(found.group() for line in lines if (found := re.search(r"http://[\d.:]+(?=/v1)", line)))
        with httpx.Client(base_url=url, timeout=20) as http:
            yield server, http
    finally:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()


def start_stream(http: httpx.Client, most: int):
    body = {"prompt": [5], "max_tokens": most, "ignore_eos": True, "stream": True}
    return http.stream("POST", "/v1/completions", json=body)


def test_sigterm_lets_a_stream_finish():
    with process(drain_s=20) as (server, http), start_stream(http, 40) as response:
        parts = response.iter_text()
        first = next(parts)
        server.send_signal(signal.SIGTERM)
        last = events(first + "".join(parts))[-1]["choices"][0]
        assert last["finish_reason"] == "length"
        assert server.wait(20) == 0


def test_sigterm_ends_what_outlasts_the_limit_with_a_last_chunk():
    with process(drain_s=0.2) as (server, http), start_stream(http, 400) as response:
        parts = response.iter_text()
        first = next(parts)
        server.send_signal(signal.SIGTERM)
        last = events(first + "".join(parts))[-1]["choices"][0]
        assert last["finish_reason"] == "abort"
        assert server.wait(20) == 0


def test_a_second_signal_ends_at_once():
    with process(drain_s=600, round_s=0.5) as (server, http), start_stream(http, 400) as response:
        next(response.iter_text())
        server.send_signal(signal.SIGINT)
        wait_for(lambda: http.get("/health").status_code == 503)
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 128 + signal.SIGINT
