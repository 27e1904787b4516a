"""What goes over the wire of a stream: order, usage, keep-alives, faults after the headers."""

import random
import threading

import pytest

from fnx_jax.engine.fake import Faults
from fnx_jax.serve.settings import ServerSettings
from tests.fnx_jax.serve.joining import join_chat, join_completion, plain_chat, plain_completion
from tests.fnx_jax.serve.support import CALL, WEATHER, byte_ids, events, ids, running

HELLO = [{"role": "user", "content": "Hello"}]
REPLIES = [
    f"hm\n</think>\n\nLook: {CALL}\n{CALL}",
    "</think>The `<tool_call>` tag is " + "x" * 60,
    f"</think>{CALL[:50]}",
    "only thoughts",
    "</think>naïve 日本 👩‍🚀 STOP and more",
]


def test_headers(server):
    with server.http.stream("POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["x-request-id"]
        assert response.read().endswith(b"data: [DONE]\n\n")


def test_order_of_chunks(server):
    server.script.say("why</think>日本")
    chunks = server.chat_events(n=2, seed=1)
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices[:2]] == [{"role": "assistant", "content": ""}] * 2
    assert {choice["index"] for choice in choices[:2]} == {0, 1}
    for index in (0, 1):
        own = [choice for choice in choices if choice["index"] == index]
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]
        assert own[-1]["delta"] == {} and own[-1]["seed"] == 1
        assert "".join(choice["delta"].get("content", "") for choice in own) == "日本"


def test_characters_arrive_whole(server):
    server.script.say(byte_ids("why 👩‍🚀</think>naïve 日本 👩‍🚀"))
    chunks = server.chat_events(logprobs=True)
    joined = join_chat(chunks)
    assert (joined["reasoning"], joined["content"]) == ("why 👩‍🚀", "naïve 日本 👩‍🚀")
    assert not any("\ufffd" in str(chunk["choices"][0]["delta"]) for chunk in chunks)
    assert b"".join(bytes(entry["bytes"]) for entry in joined["logprobs"]).startswith("why 👩‍🚀</think>naïve".encode())


@pytest.mark.parametrize(("start", "field"), [("", "reasoning"), ("</think>", "content")])
def test_a_reply_that_ends_inside_a_character_shows_it_once(server, start, field):
    server.script.say(ids(f"{start}a ") + byte_ids("👩")[:2])
    joined = join_chat(server.chat_events())
    assert joined[field] == "a \ufffd"
    assert plain_chat(server.chat().json()["choices"][0])[field] == "a \ufffd"


def test_split_characters_inside_arguments(server):
    server.script.say(ids("</think>") + byte_ids(CALL.replace("Bern", "Zürich 👩‍🚀")))
    joined = join_chat(server.chat_events(tools=[WEATHER]))
    assert joined["tool_calls"][0]["function"]["arguments"] == '{"city": "Zürich 👩‍🚀"}'


def test_usage_is_absent_unless_asked_for(server):
    server.script.say("</think>Hello")
    assert not any("usage" in chunk for chunk in server.chat_events())


def test_usage_comes_last_and_is_null_before(server):
    server.script.say("why</think>Hello")
    chunks = server.chat_events(stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert all(len(chunk["choices"]) == 1 for chunk in chunks[:-1])
    plain = server.chat().json()["usage"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == plain
    assert plain["completion_tokens"] == len(ids("why</think>Hello")) + 1
    assert plain["completion_tokens_details"]["reasoning_tokens"] == len(ids("why"))


def test_usage_may_run_along(server):
    server.script.say("</think>Hello, how are you?")
    chunks = server.chat_events(stream_options={"continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] > counts[0] and chunks[-1]["choices"]


def test_stream_options_need_a_stream(server):
    response = server.chat(stream_options={"include_usage": True})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "stream_options")


@pytest.mark.parametrize("reply", range(len(REPLIES)))
def test_stream_joins_to_the_plain_reply(server, reply):
    draw = random.Random(reply)
    wanted = {"tools": [WEATHER], "stop": "STOP", "seed": 3, "logprobs": True, "return_token_ids": True}
    wanted["request_id"] = f"r{reply}"
    server.script.say(REPLIES[reply])
    plain = server.chat(**wanted).json()
    for _ in range(3):
        server.script.draft = lambda count: draw.randint(0, 6)
        chunks = server.chat_events(**wanted)
        assert join_chat(chunks) == plain_chat(plain["choices"][0])
        assert chunks[0]["prompt_token_ids"] == plain["prompt_token_ids"]
    undrafted = server.chat(**wanted, draft=False).json()
    assert plain_chat(undrafted["choices"][0]) == plain_chat(plain["choices"][0])


def test_completion_stream_joins_to_the_plain_reply(server):
    server.script.say("one two STOP three", draft=3)
    wanted = {"prompt": ["ab", "cd"], "n": 2, "echo": True, "logprobs": 2, "return_token_ids": True, "seed": 1}
    chunks = server.events("/v1/completions", **wanted, stop=["STOP"])
    plain = server.http.post("/v1/completions", json=wanted | {"stop": ["STOP"]}).json()
    for index, text in enumerate(("ab", "ab", "cd", "cd")):
        joined = join_completion(chunks, index)
        assert joined == plain_completion(plain["choices"][index])
        assert joined["text"] == f"{text}one two " and joined["stop_reason"] == "STOP"


def test_silence_is_filled_with_comments():
    with running(ServerSettings(port=0, quiet=True, keep_alive_s=0.05)) as server:
        server.script.gate.clear()
        server.script.say("</think>Hello")
        body = {"messages": HELLO, "stream": True}
        with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
            parts = response.iter_text()
            assert next(parts) == ": keep-alive\n\n"
            server.script.gate.set()
            assert join_chat(events("".join(parts)))["content"] == "Hello"


def test_faults_after_the_headers_are_told_in_the_stream():
    poison = ids("!")[0] if len(ids("!")) == 1 else byte_ids("!")[0]
    with running(faults=Faults(nonfinite_tokens=frozenset({poison}))) as server:
        server.script.say(ids("</think>Hel") + [poison] + ids("lo"))
        chunks = server.chat_events()
        assert "non-finite" in chunks[-1]["error"]["message"] and chunks[-1]["error"]["code"] == 500
        response = server.chat()
        assert response.status_code == 500 and "non-finite" in response.json()["error"]["message"]
        server.script.say("</think>fine")
        assert server.chat().json()["choices"][0]["message"]["content"] == "fine"


def test_streams_side_by_side_do_not_mix(server):
    server.script.draft = lambda count: count % 3
    texts = {f"prompt {number}": f"</think>reply {number} " * 3 for number in range(6)}
    joined: dict[str, str] = {}

    def ask(prompt: str) -> None:
        joined[prompt] = join_chat(server.chat_events(prompt))["content"]

    threads = []
    for prompt, text in texts.items():
        server.script.reply = ids(text)
        threads.append(threading.Thread(target=ask, args=(prompt,)))
        threads[-1].start()
        while len(server.script.requests) < len(threads):
            pass
    for thread in threads:
        thread.join()
    assert joined == {prompt: text.removeprefix("</think>") for prompt, text in texts.items()}
