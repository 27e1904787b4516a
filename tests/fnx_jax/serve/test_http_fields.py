"""Every honoured field has an effect that a caller can see, and what is not known is named."""

import json
from typing import Any

import pytest

from fnx_jax.serve.fields import FIELDS
from tests.fnx_jax.serve.support import CALL, WEATHER, TestServer, ids, tokenizer

TEXT = "why\n</think>\n\nOne STOP two"
END = ids("<|im_end|>")[0]


def message(body: dict[str, Any]) -> dict[str, Any]:
    return body["choices"][0]["message"]


def engine_sees(name: str, value: Any):
    """A check that the engine was asked for `value`."""
    return lambda server, body: getattr(server.script.requests[-1].sampling, name) == value


def prompt_says(text: str):
    return lambda server, body: text in tokenizer().decode(server.script.requests[-1].prompt)


CHAT = {
    "messages": ([{"role": "user", "content": "special words"}], prompt_says("special words")),
    "model": ("tiny", lambda server, body: body["model"] == "tiny"),
    "max_tokens": (3, lambda server, body: body["usage"]["completion_tokens"] == 3),
    "max_completion_tokens": (4, lambda server, body: body["usage"]["completion_tokens"] == 4),
    "min_tokens": (2, engine_sees("min_tokens", 2)),
    "n": (2, lambda server, body: len(body["choices"]) == 2),
    "temperature": (0.5, engine_sees("temperature", 0.5)),
    "top_p": (0.5, engine_sees("top_p", 0.5)),
    "top_k": (5, engine_sees("top_k", 5)),
    "min_p": (0.1, engine_sees("min_p", 0.1)),
    "presence_penalty": (0.5, engine_sees("presence_penalty", 0.5)),
    "frequency_penalty": (0.5, engine_sees("frequency_penalty", 0.5)),
    "repetition_penalty": (1.5, engine_sees("repetition_penalty", 1.5)),
    "logit_bias": ({"7": -100, "3": 2.5}, engine_sees("logit_bias", ((3, 2.5), (7, -100.0)))),
    "seed": (2**63, lambda server, body: body["choices"][0]["seed"] == 2**63),
    "stop": ("STOP", lambda server, body: message(body)["content"] == "One "),
    "stop_token_ids": ([ids("STOP")[0]], lambda server, body: body["choices"][0]["stop_reason"] == ids("STOP")[0]),
    "ignore_eos": (True, lambda server, body: body["choices"][0]["finish_reason"] == "length"),
    "draft": (False, engine_sees("draft", False)),
    "thinking_token_budget": (1, lambda server, body: message(body)["reasoning"] == "w"),
    "stream": (True, None),
    "logprobs": (True, lambda server, body: bool(body["choices"][0]["logprobs"])),
    "include_reasoning": (False, lambda server, body: "reasoning" not in message(body)),
    "return_token_ids": (True, lambda server, body: body["choices"][0].get("token_ids") == [*ids(TEXT), END]),
    "request_id": ("mine", lambda server, body: body["id"] == "chatcmpl-mine"),
    "tools": ([WEATHER], prompt_says("get_weather")),
    "chat_template_kwargs": ({"enable_thinking": False}, lambda server, body: message(body)["content"] == TEXT),
    "enable_thinking": (False, lambda server, body: message(body)["content"] == TEXT),
    "reasoning_effort": ("low", prompt_says("effort low")),
    "add_generation_prompt": (False, lambda server, body: message(body)["content"] == TEXT),
}
NEEDS_MORE = {
    # field: (other fields, value, check)
    "include_stop_str_in_output": (
        {"stop": "STOP"},
        True,
        lambda server, body: message(body)["content"] == "One STOP",
    ),
    "skip_special_tokens": (
        {"ignore_eos": True, "max_tokens": len(ids(TEXT)) + 1},
        False,
        lambda server, body: message(body)["content"].endswith("<|im_end|>"),
    ),
    "top_logprobs": (
        {"logprobs": True},
        3,
        lambda server, body: len(body["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 3,
    ),
    "continue_final_message": (
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "so far"}]},
        True,
        lambda server, body: tokenizer().decode(server.script.requests[-1].prompt).endswith("so far"),
    ),
}
SHOWN_ELSEWHERE = {"tool_choice", "parallel_tool_calls", "stream_options"}
WITHOUT_EFFECT_ON_REPLIES = {"user", "cache_prompt"}


@pytest.mark.parametrize("name", [name for name in CHAT if name != "stream"])
def test_chat_field_has_its_effect(server, name):
    value, check = CHAT[name]
    server.script.say(TEXT)
    assert not check(server, server.chat("plain").json()) or name == "model"
    response = server.chat("plain", **{name: value}) if name != "messages" else ask(server, {"messages": value})
    assert response.status_code == 200, response.text
    assert check(server, response.json())


@pytest.mark.parametrize("name", NEEDS_MORE)
def test_chat_field_has_its_effect_beside_others(server, name):
    others, value, check = NEEDS_MORE[name]
    server.script.say(TEXT)
    base = {"messages": [{"role": "user", "content": "plain"}]} | others
    assert not check(server, ask(server, base).json())
    assert check(server, ask(server, base | {name: value}).json())


def ask(server: TestServer, body: dict[str, Any]):
    return server.http.post("/v1/chat/completions", json=body)


def test_every_honoured_chat_field_is_shown_to_work():
    honoured = {field.name for field in FIELDS if "chat" in field.routes and not field.refused}
    assert honoured == set(CHAT) | set(NEEDS_MORE) | SHOWN_ELSEWHERE | WITHOUT_EFFECT_ON_REPLIES


def test_completions_adds_few_fields_of_its_own():
    own = {field.name for field in FIELDS if field.routes == ("completions",) and not field.refused}
    assert own == {"logprobs", "prompt_logprobs", "echo"}


def test_end_tokens_are_ignored_only_on_request(server):
    server.script.say("</think>a<|im_end|>b")
    assert message(server.chat().json())["content"] == "a"
    tokens = server.chat(ignore_eos=True, max_tokens=6, return_token_ids=True).json()["choices"][0]["token_ids"]
    assert tokens[:5] == ids("</think>a<|im_end|>b") + [END]


def test_stop_does_not_count_inside_reasoning(server):
    server.script.say("a STOP b</think>c STOP d")
    body = server.chat(stop="STOP").json()
    assert (message(body)["reasoning"], message(body)["content"]) == ("a STOP b", "c ")
    assert body["choices"][0]["stop_reason"] == "STOP"


def test_stop_over_several_tokens_ends_usage_too(server):
    server.script.say("</think>one, two, three", draft=6)
    plain = server.chat(stop=["o, th"], return_token_ids=True).json()
    assert message(plain)["content"] == "one, tw"
    text = tokenizer().decode(plain["choices"][0]["token_ids"])
    assert "o, th" in text and not text.endswith("three")
    assert plain["usage"]["completion_tokens"] == len(plain["choices"][0]["token_ids"])


def test_min_tokens_outlasts_a_stop(server):
    server.script.say("</think>a STOP b STOP c")
    first = len(ids("</think>a STOP"))
    assert message(server.chat(stop="STOP", min_tokens=first).json())["content"] == "a STOP b "


def test_choices_share_the_seed_and_differ(server):
    server.script.say(None)
    wanted = {"n": 3, "seed": 5, "temperature": 1.0, "max_tokens": 8, "return_token_ids": True, "ignore_eos": True}
    several = server.chat(**wanted).json()["choices"]
    alone = server.chat(**wanted | {"n": 1}).json()["choices"][0]
    assert [choice["seed"] for choice in several] == [5, 5, 5]
    assert several[0]["token_ids"] == alone["token_ids"]
    assert len({tuple(choice["token_ids"]) for choice in several}) == 3


def test_a_drawn_seed_repeats_the_reply(server):
    server.script.say(None)
    wanted = {"temperature": 1.0, "max_tokens": 8}
    first = server.chat(**wanted).json()["choices"][0]
    again = server.chat(**wanted, seed=first["seed"]).json()["choices"][0]
    assert first["token_sha"] == again["token_sha"]


def test_prompt_tokens_count_once_for_several_choices(server):
    assert server.chat(n=3).json()["usage"]["prompt_tokens"] == server.chat().json()["usage"]["prompt_tokens"]


def test_parallel_calls_may_be_forbidden(server):
    server.script.say(f"</think>{CALL}{CALL}<|endoftext|>")
    both = server.chat(tools=[WEATHER]).json()
    one = server.chat(tools=[WEATHER], parallel_tool_calls=False).json()
    assert len(message(both)["tool_calls"]) == 2 and len(message(one)["tool_calls"]) == 1
    assert one["choices"][0]["finish_reason"] == "tool_calls" and one["choices"][0]["stop_reason"] is None
    assert one["usage"]["completion_tokens"] == len(ids(f"</think>{CALL}"))


def test_tool_choice_none_forbids_the_opening_tag(server):
    server.script.say(f"</think>{CALL}")
    reply = message(server.chat(tools=[WEATHER], tool_choice="none").json())
    bias = dict(server.script.requests[-1].sampling.logit_bias)
    assert bias == {tokenizer().id_of("<tool_call>"): float("-inf")}
    assert "tool_calls" not in reply and "get_weather" in prompt_text(server)


def prompt_text(server: TestServer) -> str:
    return tokenizer().decode(server.script.requests[-1].prompt)


def test_tools_inside_reasoning_are_text(server):
    server.script.say(f"I might call {CALL}\n</think>but no")
    reply = message(server.chat(tools=[WEATHER]).json())
    assert CALL in reply["reasoning"] and reply["content"] == "but no" and "tool_calls" not in reply


def test_cut_call_is_content_and_length(server):
    server.script.say(f"</think>{CALL}")
    cut = len(ids(f"</think>{CALL}")) - 1
    body = server.chat(tools=[WEATHER], max_tokens=cut).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert message(body)["content"] == tokenizer().decode(ids(CALL)[:-1]) and "tool_calls" not in message(body)


def test_the_limit_beats_a_complete_call(server):
    server.script.say(f"</think>{CALL} and more")
    body = server.chat(tools=[WEATHER], max_tokens=len(ids(f"</think>{CALL}"))).json()
    assert body["choices"][0]["finish_reason"] == "length" and len(message(body)["tool_calls"]) == 1


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("text", ["a</think>b", "ab", "a</think>b</think>c", "</think>\n\nb", "a\n"])
def test_reasoning_is_split_by_the_prompt(server, thinking, text):
    server.script.say(text)
    body = message(server.chat(enable_thinking=thinking).json())
    before, tag, after = text.partition("</think>")
    if not thinking:
        wanted = (None, text)
    elif tag:
        wanted = (before or None, after.lstrip("\n"))
    else:
        wanted = (text, None)
    assert (body["reasoning_content"], body["content"]) == wanted


def test_unknown_fields_are_named_in_a_header_and_the_log(server, caplog):
    response = server.chat(mirostat=2, store=True)
    assert any("mirostat" in record.getMessage() for record in caplog.records)
    assert response.headers["x-ignored-fields"] == "mirostat, store"
    assert "x-ignored-fields" not in server.chat().headers


def test_completions_prompt_logprobs(server):
    body = server.complete("Hello", prompt_logprobs=2, max_tokens=1).json()["choices"][0]
    entries = body["prompt_logprobs"]
    assert len(entries) == len(ids("Hello")) and entries[0] is None
    assert len(entries[1]) >= 2 and {"logprob", "rank", "decoded_token"} == set(next(iter(entries[1].values())))


def test_tokenize_gives_what_the_chat_runs(server):
    body = {"messages": [{"role": "user", "content": "é <&>"}], "tools": [WEATHER], "reasoning_effort": "low"}
    ran = server.http.post("/v1/chat/completions", json=body | {"return_token_ids": True}).json()["prompt_token_ids"]
    counted = server.http.post("/tokenize", json=body).json()
    assert counted["tokens"] == ran and counted["count"] == len(ran)
    assert counted["max_model_len"] == 512 and counted["token_strs"] is None
    text = server.http.post("/detokenize", json={"tokens": ran}).json()["prompt"]
    assert text.endswith("<think>\n") and "é <&>" in text


def test_tokenize_a_text(server):
    body = server.http.post("/tokenize", json={"prompt": "Hello é", "return_token_strs": True}).json()
    assert body["tokens"] == ids("Hello é") and len(body["token_strs"]) == body["count"]


def test_json_keeps_other_scripts(server):
    server.script.say("</think>日本")
    assert "日本" in server.chat().text


def test_replies_are_valid_for_strict_readers(server):
    server.script.say("</think>x")
    text = server.chat(logprobs=True, top_logprobs=20, logit_bias={"1": -100}).text
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
