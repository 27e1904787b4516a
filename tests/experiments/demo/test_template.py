"""The chat template of the embedded checkpoint."""

import json

import pytest
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from checkpoints.commands import DEMO

LOW = "Keep your thinking short, and answer as soon as you can."
XHIGH = "Think as long as the question needs, and check your answer before you give it."
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def render(messages: list[dict], **options) -> str:
    def fail(message: str):
        raise TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.globals["raise_exception"] = fail
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return env.from_string((DEMO / "chat_template.jinja").read_text("utf-8")).render(messages=messages, **options)


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def test_template_opens_thinking_and_states_the_effort():
    hello = turn("user", "Hi <b> & é")
    messages = [user("Hi <b> & é")]
    assert render(messages) == turn("system", XHIGH) + hello
    opened = "<|im_start|>assistant\n<think>\n"
    assert render(messages, add_generation_prompt=True) == turn("system", XHIGH) + hello + opened
    assert render(messages, reasoning_effort="low", add_generation_prompt=True) == turn("system", LOW) + hello + opened
    assert render(messages, reasoning_effort="medium", add_generation_prompt=True) == hello + opened
    assert render(messages, enable_thinking=False, add_generation_prompt=True) == hello + opened + "\n</think>\n\n"
    with pytest.raises(TemplateError, match="not high"):
        render(messages, reasoning_effort="high")


def test_template_puts_effort_system_text_and_tools_into_the_first_turn():
    messages = [{"role": "system", "content": " Be kind.\n"}, user("Hi")]
    assert render(messages, enable_thinking=False) == turn("system", "Be kind.") + turn("user", "Hi")
    text = render(messages, tools=[TOOL, TOOL])
    line = json.dumps(TOOL)
    assert text.startswith(f"<|im_start|>system\n{XHIGH}\n\nBe kind.\n\nYou may call")
    assert f"<tools>\n{line}\n{line}\n</tools>\n\n" in text
    assert text.endswith("</function>\n</tool_call><|im_end|>\n" + turn("user", "Hi"))


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "no message"),
        ([user("a"), {"role": "system", "content": "b"}], "must be the first"),
        ([user("a"), {"role": "critic", "content": "b"}], "unknown role critic"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "not image_url"),
        ([user("a"), {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{}"}]}], "must be an object"),
    ],
)
def test_template_refuses_what_it_cannot_render(messages, message):
    with pytest.raises(TemplateError, match=message):
        render(messages)


def test_template_keeps_or_drops_earlier_thinking():
    messages = [
        user("1"),
        {"role": "assistant", "content": "one", "reasoning_content": "hm\n"},
        user([{"type": "text", "text": "2"}, {"type": "text", "text": "3"}]),  # type: ignore[arg-type]
        {"role": "assistant", "content": "<think>\nlook\n</think>\n\ntwo"},
    ]
    kept = turn("user", "1") + turn("assistant", "<think>\nhm\n</think>\n\none") + turn("user", "23")
    newest = turn("assistant", "<think>\nlook\n</think>\n\ntwo")
    assert render(messages, reasoning_effort="medium") == kept + newest
    dropped = turn("user", "1") + turn("assistant", "one") + turn("user", "23")
    assert render(messages, reasoning_effort="medium", preserve_thinking=False) == dropped + newest


def test_template_writes_calls_in_xml_and_groups_their_results():
    calls = [
        {"type": "function", "function": {"name": "look", "arguments": {"at": "é <x>", "deep": True, "n": [1, "ü"]}}},
        {"type": "function", "function": {"name": "stop", "arguments": {}}},
    ]
    messages = [
        user("go"),
        {"role": "assistant", "content": "Well.", "tool_calls": calls},
        {"role": "tool", "content": "r1"},
        {"role": "tool", "content": "r2"},
        user("and?"),
    ]
    text = render(messages, reasoning_effort="medium")
    first = (
        "<tool_call>\n<function=look>\n<parameter=at>\né <x>\n</parameter>\n<parameter=deep>\ntrue\n</parameter>\n"
        '<parameter=n>\n[1, "ü"]\n</parameter>\n</function>\n</tool_call>'
    )
    second = "\n<tool_call>\n<function=stop>\n</function>\n</tool_call>"
    answer = turn("assistant", f"<think>\n\n</think>\n\nWell.\n\n{first}{second}")
    results = "<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response>"
    assert text == turn("user", "go") + answer + turn("user", results) + turn("user", "and?")
