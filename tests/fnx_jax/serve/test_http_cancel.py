"""A client that leaves, at any phase, leaves nothing behind; one that stops reading is dropped."""

import asyncio
import json
import socket

import pytest

from fnx_jax.serve import runner
from fnx_jax.serve.app import build_app
from fnx_jax.serve.service import Service
from fnx_jax.serve.settings import ServerSettings
from tests.fnx_jax.serve.support import Script, TestServer, fake_model, idle, running, wait_for


def send(server: TestServer, path: str = "/v1/completions", **body) -> socket.socket:
    """Sends a request and leaves the connection open."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    host, port = server.run.address
    connection = socket.create_connection((host, port), timeout=10)
    connection.sendall(head.encode() + data)
    return connection


@pytest.fixture(params=[False, True], ids=["plain", "streamed"])
def stream(request) -> bool:
    return request.param


def test_leaving_while_queued(stream):
    with running(lanes=1) as server:
        server.script.gate.clear()
        server.script.say(None)
        first = send(server, prompt=[5] * 4, max_tokens=4, ignore_eos=True)
        wait_for(lambda: len(server.script.requests) == 1)
        second = send(server, prompt=[6] * 4, max_tokens=400, stream=stream, ignore_eos=True)
        wait_for(lambda: len(server.script.requests) == 2)
        second.close()
        wait_for(lambda: len(server.run.service.streams) == 1)
        server.script.gate.set()
        assert first.recv(65536).startswith(b"HTTP/1.1 200")
        first.close()
        wait_for(lambda: idle(server))
        assert server.engine.status().finished["abort"] == 1


def test_leaving_while_the_prompt_is_filled(stream):
    with running(max_rows=16) as server:
        server.script.gate.clear()
        connection = send(server, prompt=[5] * 400, stream=stream)
        wait_for(lambda: server.script.begun == 1)
        connection.close()
        wait_for(lambda: not server.run.service.streams)
        server.script.gate.set()
        wait_for(lambda: idle(server))
        status = server.engine.status()
        assert status.finished["abort"] == 1 and status.prompt_tokens < 400


def test_leaving_in_the_middle_of_a_reply(stream):
    with running() as server:
        server.script.say(None)
        connection = send(server, prompt=[5] * 4, max_tokens=400, stream=stream, ignore_eos=True)
        wait_for(lambda: server.engine.status().generation_tokens >= 3)
        server.script.gate.clear()
        connection.close()
        wait_for(lambda: not server.run.service.streams)
        server.script.gate.set()
        wait_for(lambda: idle(server))
        status = server.engine.status()
        assert status.finished["abort"] == 1 and status.generation_tokens < 400


def test_leaving_does_not_disturb_others(stream):
    with running() as server:
        server.script.say(None)
        wanted = {"max_tokens": 40, "ignore_eos": True}
        alone = server.complete([7] * 4, **wanted).json()["choices"][0]["token_sha"]
        other = send(server, prompt=[5] * 4, max_tokens=400, stream=stream, ignore_eos=True)
        wait_for(lambda: len(server.script.requests) == 2)
        other.close()
        assert server.complete([7] * 4, **wanted).json()["choices"][0]["token_sha"] == alone


def test_many_that_leave_leak_nothing(stream):
    with running() as server:
        server.script.say(None)
        for number in range(40):
            connection = send(server, prompt=[5 + number % 3] * 4, max_tokens=300, stream=stream, ignore_eos=True, n=2)
            if number % 2:
                connection.recv(1) if stream else wait_for(lambda: not idle(server))
            connection.close()
        wait_for(lambda: idle(server) and not server.run.service.streams)


def test_one_that_stops_reading_is_dropped():
    script = Script()
    script.say(None)
    settings = ServerSettings(quiet=True, stream_bound=8)
    service = Service(settings)
    model = fake_model(script)
    service.become_ready(model)
    body = json.dumps({"prompt": [5] * 2, "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 2}).encode()
    requests = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[str] = []

    async def receive():
        if requests:
            return requests.pop()
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message["type"])
        if len(sent) > 5:
            await asyncio.Event().wait()

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
    asyncio.run(asyncio.wait_for(build_app(service)(scope, receive, send), 20))  # type: ignore[arg-type]
    assert len(sent) == 6
    wait_for(lambda: model.engine.status().finished["abort"] == 2)
    assert not service.streams
    model.engine.stop()


def test_a_body_that_never_comes_is_answered_when_the_server_ends(monkeypatch):
    monkeypatch.setattr(runner, "FLUSH_S", 0.0)
    with running() as server, socket.create_connection(server.run.address, timeout=10) as connection:
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(1024).startswith(b"HTTP/1.1 100 ")
        server.run.stop()
        reply = connection.makefile("rb").read()
    assert reply.startswith(b"HTTP/1.1 503 ") and b"shutting down" in reply
