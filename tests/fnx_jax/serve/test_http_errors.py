"""Faults: always the same shape, the right status, the field at fault, and never a 500 for a bad request."""

import json

import pytest

from fnx_jax.serve.settings import ServerSettings
from tests.fnx_jax.serve.support import WEATHER, TestServer, idle, running, wait_for

HELLO = [{"role": "user", "content": "Hello"}]
KINDS = {400: "BadRequestError", 404: "NotFoundError", 405: "MethodNotAllowedError", 413: "PayloadTooLargeError"}
KINDS |= {415: "UnsupportedMediaTypeError", 429: "RateLimitError", 500: "InternalServerError"}


def check(response, status: int, param: str | None = None) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json" and response.headers["x-request-id"]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert (error["type"], error["param"]) == (KINDS[status], param)
    return error


def post(server: TestServer, path: str, content: bytes, **headers: str):
    return server.http.post(path, content=content, headers={"content-type": "application/json"} | headers)


BAD_CHATS = [
    ({}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
    ({"messages": [HELLO[0], {"role": "system", "content": "x"}, HELLO[0]]}, "messages[1].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ({"messages": HELLO, "chat_template_kwargs": {"reasoning_effort": "x"}}, "messages"),
    ({"messages": HELLO, "temperature": True}, "temperature"),
    ({"messages": HELLO, "n": 17}, "n"),
    ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
    ({"messages": HELLO, "max_tokens": 10_000}, "max_tokens"),
    ({"messages": HELLO, "min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"messages": HELLO, "stop_token_ids": [10_000]}, "stop_token_ids"),
    ({"messages": HELLO, "logit_bias": {"10000": 1}}, "logit_bias"),
    ({"messages": HELLO, "top_logprobs": 2}, "top_logprobs"),
    ({"messages": HELLO, "request_id": "a\nb"}, "request_id"),
    ({"messages": HELLO, "response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": HELLO, "tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
    ({"messages": HELLO, "chat_template_kwargs": {"tools": [1]}}, "chat_template_kwargs.tools"),
    ({"messages": HELLO, "continue_final_message": True}, "continue_final_message"),
    ({"messages": HELLO, "stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
    ({"messages": HELLO * 200}, "messages"),
]


def test_a_long_model_name_is_not_repeated_whole(server):
    error = check(
        server.http.post("/v1/chat/completions", json={"model": "x" * 99_999, "messages": HELLO}), 404, "model"
    )
    assert len(error["message"]) < 300


@pytest.mark.parametrize(("body", "param"), BAD_CHATS, ids=[f"{n}-{param}" for n, (_, param) in enumerate(BAD_CHATS)])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_chats_are_refused_before_anything_starts(server, body, param, stream):
    check(server.http.post("/v1/chat/completions", json={"stream": stream} | body), 400, param)
    assert server.script.requests == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": ["a", 3]}, "prompt[1]"),
        ({"prompt": ["a", []]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [10_000]}, "prompt"),
        ({"prompt": [[1], [10_000]]}, "prompt[1]"),
        ({"prompt": ["a"] * 300}, "prompt"),
        ({"prompt": [5] * 600}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
def test_bad_completions_are_refused(server, body, param):
    check(server.http.post("/v1/completions", json=body), 400, param)
    assert server.script.requests == []


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"temperature": NaN}', b"\xff", b'{"a": "\\ud800"}'])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
def test_bodies_that_are_not_json_are_refused(server, path, content):
    check(post(server, path, content), 400)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
        ("/tokenize", {"prompt": [1]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [10_000]}, "tokens"),
    ],
)
def test_bad_tokenize_requests_are_refused(server, path, body, param):
    check(server.http.post(path, json=body), 400, param)


def test_paths_methods_and_models_that_are_not_there(server):
    check(server.http.get("/v1/nothing"), 404)
    check(server.http.post("/v1/embeddings", json={}), 404)
    check(server.http.get("/v1/chat/completions"), 405)
    assert check(server.http.get("/v1/models/other"), 404, "model")["code"] == "model_not_found"
    assert check(server.chat(model="other"), 404, "model")["code"] == "model_not_found"


def test_other_content_types_are_refused(server):
    check(post(server, "/v1/completions", b"prompt=a", **{"content-type": "application/x-www-form-urlencoded"}), 415)
    assert post(
        server, "/tokenize", b'{"prompt": "a"}', **{"content-type": "application/json; charset=utf-8"}
    ).is_success


def test_request_ids_are_echoed_when_they_are_harmless(server):
    assert server.http.get("/version", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert server.http.get("/version", headers={"X-Request-Id": "a b"}).headers["x-request-id"] != "a b"


def test_origins_are_allowed_as_configured(server):
    allowed = server.http.get("/version", headers={"Origin": "http://app.test"})
    assert allowed.headers["access-control-allow-origin"] == "http://app.test"
    other = server.http.get("/version", headers={"Origin": "http://other.test"})
    assert "access-control-allow-origin" not in other.headers


def test_large_bodies_are_refused_and_the_connection_ends():
    with running(ServerSettings(port=0, quiet=True, max_body_bytes=1000)) as server:
        body = json.dumps({"prompt": "x" * 2000}).encode()
        assert check(post(server, "/tokenize", body), 413) and post(server, "/tokenize", b'{"prompt": "a"}').is_success
        chunks = (body[at : at + 100] for at in range(0, len(body), 100))
        response = server.http.post("/tokenize", content=chunks, headers={"content-type": "application/json"})
        check(response, 413)


def test_a_full_queue_is_told_and_touches_nothing():
    with running(lanes=1, max_queue=1) as server:
        server.script.gate.clear()
        server.script.say("</think>x")
        response = server.http.post("/v1/completions", json={"prompt": ["a", "b", "c"]})
        error = check(response, 429)
        assert error["code"] == "queue_full" and response.headers["retry-after"]
        server.script.gate.set()
        wait_for(lambda: idle(server))
        assert server.engine.status().finished["abort"] == 2
        assert server.chat().is_success


def test_pages_that_do_not_suffice_are_a_bad_request():
    with running(pages=4) as server:
        check(server.complete([5] * 40), 400, "prompt")
        assert server.complete([5] * 4, max_tokens=4).is_success


def test_a_fault_of_ours_shows_no_trace(server, monkeypatch):
    def broken(*_):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(server.run.service.model.assets.tokenizer, "encode", broken)
    response = server.http.post("/tokenize", json={"prompt": "a"})
    assert check(response, 500) and "secret" not in response.text
