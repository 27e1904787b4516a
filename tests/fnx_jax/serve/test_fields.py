"""The field table: every field is honoured or refused, in its range, with its name in the fault."""

import json
from dataclasses import replace

import pytest

from fnx_jax.serve.errors import ApiError
from fnx_jax.serve.fields import FIELDS, Route, document, fields_of
from fnx_jax.serve.sampling import NEUTRAL, Limits, reply_limit, sampling_defaults, sampling_params
from fnx_jax.serve.validate import Fields, IgnoredOnce, read_fields

LIMITS = Limits(context=100, vocabulary=50, max_n=4)


def read(route: Route = "chat", /, **values) -> Fields:
    return read_fields(route, json.dumps(values).encode())


def fault(call, *args, **values) -> ApiError:
    with pytest.raises(ApiError) as raised:
        call(*args, **values)
    assert raised.value.status == 400
    return raised.value


WRONG = {
    "temperature": [-0.1, 2.1, True, "1", [], {}],
    "top_p": [0, 1.1, False],
    "top_k": [-2, 1.5, True, 2**40],
    "min_p": [-0.1, 1.1],
    "presence_penalty": [-2.1, 2.1],
    "frequency_penalty": [-2.1, 2.1, "x"],
    "repetition_penalty": [0, -1, True, 1e-38, 1e39, 10**400],
    "max_tokens": [-1, 0.5, True, "5"],
    "max_completion_tokens": [-1, False],
    "min_tokens": [-1, True],
    "thinking_token_budget": [-1, True],
    "n": [0, True, "2", 1.5],
    "seed": [2**64, -(2**63) - 1, 0.5, True, "7"],
    "stop": ["", [""], ["a"] * 17, [1], 3, {"a": 1}, ["x" * 2000]],
    "stop_token_ids": [[-1], [True], ["1"], 5, [0.5]],
    "logit_bias": [[], {"x": 1}, {"-1": 1}, {"1": 101}, {"1": True}, {str(i): 1 for i in range(1025)}],
    "ignore_eos": [1, "true"],
    "include_stop_str_in_output": [0],
    "draft": [1],
    "cache_prompt": ["yes"],
    "stream": [1, "true"],
    "stream_options": [True, []],
    "logprobs": [1, "true"],
    "top_logprobs": [-1, 21, True],
    "skip_special_tokens": [1],
    "include_reasoning": [1],
    "return_token_ids": [1],
    "request_id": [1],
    "user": [1],
    "model": [1],
    "parallel_tool_calls": [1],
    "chat_template_kwargs": [[], "x"],
    "enable_thinking": [1],
    "reasoning_effort": ["huge", 3],
    "add_generation_prompt": [1],
    "continue_final_message": [1],
    # refused fields, with values that ask for something
    "audio": [{}],
    "modalities": [["text", "audio"], "text"],
    "functions": [[]],
    "function_call": ["auto"],
    "best_of": [2, True],
    "use_beam_search": [True, 0],
    "prompt_embeds": ["x"],
    "chat_template": ["x"],
    "truncate_prompt_tokens": [5],
    "bad_words": [["x"]],
    "allowed_token_ids": [[1]],
    "prompt_logprobs": [1],
    "response_format": [{"type": "json_object"}, {"type": "json_schema"}, "text"],
    "structured_outputs": [{}],
    "guided_json": [{}],
    "guided_regex": ["x"],
    "guided_choice": [["x"]],
    "guided_grammar": ["x"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_wrong_values_are_refused_by_name(name, value):
    param = fault(read, **{name: value}).param
    assert param is not None and param.split("[")[0].split(".")[0] == name


def test_every_chat_field_has_a_wrong_value_above():
    checked_elsewhere = {"messages", "tools", "tool_choice"}
    assert set(fields_of("chat")) == set(WRONG) | checked_elsewhere


@pytest.mark.parametrize("name", [field.name for field in FIELDS])
def test_null_is_absent(name):
    for route in ("chat", "completions", "tokenize", "detokenize"):
        assert read(route, **{name: None}).values == {}


@pytest.mark.parametrize(
    ("name", "value"), [("best_of", 1), ("modalities", ["text"]), ("response_format", {"type": "text"})]
)
def test_refused_fields_may_ask_for_nothing(name, value):
    assert read(**{name: value}).values == {}


def test_completions_has_its_own_fields():
    assert read("completions", logprobs=3, echo=True, suffix="").values == {"logprobs": 3, "echo": True}
    assert fault(read, "completions", suffix="x").param == "suffix"
    assert read("completions", messages=[]).ignored == ("messages",)


def test_unknown_fields_are_collected():
    fields = read(temperature=1, foo=1, bar=None, stream=True, stream_options={"include_usage": True, "x": 1})
    assert fields.ignored == ("foo", "stream_options.x")
    assert fields.headers() == {"X-Ignored-Fields": "foo, stream_options.x"}
    assert read(**{"a\r\nb": 1}).ignored == ("(unprintable)",)


def test_unknown_fields_are_logged_once(caplog):
    once = IgnoredOnce(most=2)
    for name in ("a", "a", "b", "c"):
        once.note((name,))
    assert [record.getMessage().split()[2] for record in caplog.records] == ["a", "b"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"3", b'{"temperature": NaN}', b'{"temperature": Infinity}', b'{"a": 1e999}', b'{"a": "\xff"}']
    + [b'{"a": "\\ud800"}', b"[" * 100_000, b'{"a": 1} x'],
)
def test_bad_bodies_are_refused(body):
    assert fault(read_fields, "chat", body).message


def test_document_lists_every_field():
    assert all(f"`{field.name}`" in document() for field in FIELDS)


def test_defaults_come_in_order():
    defaults = sampling_defaults({"temperature": 0.6, "top_k": 20, "do_sample": True}, [("top_k", 5)])
    assert defaults == {**NEUTRAL, "temperature": 0.6, "top_k": 5}
    params = sampling_params(read(temperature=0.1), defaults, LIMITS, (1,), 10)
    assert (params.temperature, params.top_k, params.top_p) == (0.1, 5, 1.0)


@pytest.mark.parametrize("pair", [("tempreature", 1.0), ("temperature", 3.0)])
def test_wrong_defaults_are_refused(pair):
    with pytest.raises(ValueError, match=pair[0]):
        sampling_defaults({}, [pair])


def test_top_k_off_is_zero():
    for value in (-1, 0):
        assert sampling_params(read(top_k=value), NEUTRAL, LIMITS, (), 1).top_k == 0


def test_seed_is_kept_or_drawn():
    for seed in (0, 2**64 - 1, -(2**63)):
        assert sampling_params(read(seed=seed), NEUTRAL, LIMITS, (), 1).seed == seed
    drawn = {sampling_params(read(), NEUTRAL, LIMITS, (), 1).seed for _ in range(5)}
    assert len(drawn) == 5 and all(0 <= seed < 2**63 for seed in drawn)


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"n": 5}, "n"),
        ({"min_tokens": 11}, "min_tokens"),
        ({"logit_bias": {"50": 1}}, "logit_bias"),
        ({"stop_token_ids": [50]}, "stop_token_ids"),
    ],
)
def test_values_must_suit_the_model(values, param):
    assert fault(sampling_params, read(**values), NEUTRAL, LIMITS, (), 10).param == param


def test_drafts_may_be_asked_for_only_where_there_are_some():
    none = replace(LIMITS, drafts=False)
    error = fault(sampling_params, read(draft=True), NEUTRAL, none, (), 10)
    assert (error.param, error.status) == ("draft", 400)
    for draft, limits in ((False, none), (None, none), (True, LIMITS)):
        assert sampling_params(read(draft=draft), NEUTRAL, limits, (), 10).draft == (draft is not False)


def test_reply_limit_fills_the_context():
    assert reply_limit(read(), LIMITS, 30, "messages") == 70
    assert reply_limit(read(max_tokens=5), LIMITS, 30, "messages") == 5
    assert reply_limit(read(max_tokens=5, max_completion_tokens=7), LIMITS, 30, "messages") == 7
    assert reply_limit(read(), Limits(100, 50, 4, default_max_tokens=8), 30, "messages") == 8
    assert reply_limit(read("completions", max_tokens=0, echo=True), LIMITS, 30, "prompt") == 0


@pytest.mark.parametrize(
    ("values", "prompt", "param", "numbers"),
    [
        ({}, 100, "messages", ("100", "101")),
        ({}, 150, "messages", ("100", "151", "150")),
        ({"max_tokens": 71}, 30, "max_tokens", ("100", "101", "30", "71")),
    ],
)
def test_over_long_requests_are_told_both_numbers(values, prompt, param, numbers):
    error = fault(reply_limit, read(**values), LIMITS, prompt, "messages")
    assert (error.code, error.param) == ("context_length_exceeded", param)
    assert all(number in error.message for number in numbers)


def test_no_tokens_at_all_is_refused_without_echo():
    assert fault(reply_limit, read(max_tokens=0), LIMITS, 30, "messages").param == "max_tokens"
