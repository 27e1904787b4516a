"""Messages are brought into the form that templates expect, or refused with the message's name."""

import pytest

from fnx_jax.serve.errors import ApiError
from fnx_jax.serve.messages import normalise

USER = {"role": "user", "content": "hi"}


def refused(messages) -> str:
    with pytest.raises(ApiError) as fault:
        normalise(messages)
    assert fault.value.status == 400
    assert fault.value.param is not None
    return fault.value.param


def system(text: str) -> dict:
    return {"role": "system", "content": text}


def with_arguments(arguments) -> list[dict]:
    function = {"name": "f"} if arguments is ... else {"name": "f", "arguments": arguments}
    return [USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}]


@pytest.mark.parametrize("arguments", ['{"city": "Bern"}', {"city": "Bern"}, ' {"city": "Bern"}\n'])
def test_arguments_become_a_mapping(arguments):
    message = normalise(with_arguments(arguments))[1]
    assert message["tool_calls"][0]["function"]["arguments"] == {"city": "Bern"}
    assert message["content"] == ""


@pytest.mark.parametrize("arguments", ["", "{}", {}, None, ..., "  "])
def test_empty_arguments_become_an_empty_mapping(arguments):
    assert normalise(with_arguments(arguments))[1]["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("arguments", ['{"city"', "[1]", "3", 3, [], '{"a": NaN}', '{"a": "\\ud800"}', "[" * 100_000])
def test_broken_arguments_are_refused_by_name(arguments):
    assert refused(with_arguments(arguments)) == "messages[1].tool_calls[0].function.arguments"


def test_leading_system_and_developer_messages_become_one():
    messages = [system("one"), {"role": "developer", "content": "two"}, USER]
    assert normalise(messages) == [system("one\n\ntwo"), USER]


def test_late_system_is_refused_merged_or_made_a_user():
    messages = [system("one"), USER, system("two"), USER]
    assert refused(messages) == "messages[2].role"
    assert normalise(messages, "merge") == [system("one\n\ntwo"), USER, USER]
    assert normalise(messages, "user") == [system("one"), USER, {"role": "user", "content": "two"}, USER]


@pytest.mark.parametrize("messages", [[], [system("alone")], None, "hi", {}, [{"role": "assistant", "content": "x"}]])
def test_a_user_message_is_needed(messages):
    assert refused(messages) == "messages"


def test_parts_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert normalise([{"role": "user", "content": parts}])[0]["content"] == "ab"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "file"])
def test_other_media_are_refused_by_place(kind):
    content = [{"type": "text", "text": "see"}, {"type": kind, kind: {}}]
    assert refused([{"role": "user", "content": content}]) == "messages[0].content[1]"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("text", "messages[0]"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "function", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "user", "content": [{"type": ["x"]}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": "x", "name": 3}, "messages[0].name"),
        ({"role": "assistant", "reasoning": 3}, "messages[0].reasoning"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [3]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "function_call": {}}, "messages[0].function_call"),
    ],
)
def test_wrong_shapes_are_refused_by_name(message, param):
    assert refused([message, USER]) == param


def test_reasoning_goes_by_one_name():
    for name in ("reasoning", "reasoning_content"):
        message = normalise([USER, {"role": "assistant", "content": "x", name: "why"}])[1]
        assert message == {"role": "assistant", "content": "x", "reasoning_content": "why"}
