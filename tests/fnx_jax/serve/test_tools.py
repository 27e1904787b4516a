"""Tool calls: what is one, how its values are typed, and that pieces of text do not matter."""

import json
import random

import pytest

from fnx_jax.serve.deltas import CallArguments, CallStart, Content
from fnx_jax.serve.markup import MARKUP
from fnx_jax.serve.tools import ToolParser
from tests.fnx_jax.serve.support import CALL, WEATHER

SCHEMAS = {"get_weather": WEATHER["function"]["parameters"], "noop": None}


def parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


def call(name: str, *parameters: str) -> str:
    return f"<tool_call>\n<function={name}>\n{''.join(parameters)}</function>\n</tool_call>"


def parse(pieces: list[str], schemas=SCHEMAS, single: bool = False) -> tuple[str, list[tuple[str, str]]]:
    """Joined content, and (name, joined arguments) of each call."""
    parser = ToolParser(schemas, MARKUP, single)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.close()
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        if isinstance(delta, CallStart):
            assert delta.index == len(calls)
            calls.append((delta.name, ""))
        elif isinstance(delta, CallArguments):
            assert delta.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.text)
    return "".join(delta.text for delta in deltas if isinstance(delta, Content)), calls


BERN = ("get_weather", '{"city": "Bern"}')
UNKNOWN = call("other", parameter("a", CALL))
CASES = {
    "one call": (CALL, "", [BERN]),
    "prose before and after": (f"Let me see.\n\n{CALL}\n\nDone.", "Let me see.\n\n\n\nDone.", [BERN]),
    "two calls": (f"{CALL}\n{CALL}\n", "", [BERN, BERN]),
    "no parameters": (call("noop"), "", [("noop", "{}")]),
    "several": (
        call("get_weather", parameter("days", "3"), parameter("city", "Zürich")),
        "",
        [("get_weather", '{"days": 3, "city": "Zürich"}')],
    ),
    "literal tag in prose": (
        "The `<tool_call>` tag is <tool_call> it.",
        "The `<tool_call>` tag is <tool_call> it.",
        [],
    ),
    "tag before a call": (f"<tool_call>{CALL}", "<tool_call>", [BERN]),
    "unknown function": (UNKNOWN, UNKNOWN, []),
    "unknown, then known": (UNKNOWN + CALL, UNKNOWN, [BERN]),
    "unknown, broken, then known": (
        f"<tool_call>\n<function=other>\nwhat{CALL}",
        "<tool_call>\n<function=other>\nwhat",
        [BERN],
    ),
    "cut in the value": (CALL[:60], CALL[:60], []),
    "cut before the end": (CALL[:-1], CALL[:-1], []),
    "cut call after a call": (CALL + CALL[:-3], CALL[:-3], [BERN]),
    "text between tags": (
        "<tool_call>\n<function=noop>\noops\n</function>\n</tool_call>",
        "<tool_call>\n<function=noop>\noops\n</function>\n</tool_call>",
        [],
    ),
    "broken, then a call": (
        f"<tool_call>\n<function=noop>\noops\n</function>\n</tool_call>\n{CALL}",
        "<tool_call>\n<function=noop>\noops\n</function>\n</tool_call>\n",
        [BERN],
    ),
    "text after a parameter": (
        call("get_weather", "<parameter=city>\nBern\n</parameter>\noops") + CALL,
        call("get_weather", "<parameter=city>\nBern\n</parameter>\noops"),
        [BERN],
    ),
    "value quotes the closing tag": (
        call("get_weather", parameter("city", "a</parameter>b")),
        "",
        [("get_weather", '{"city": "a</parameter>b"}')],
    ),
    "value quotes an opening": (
        call("get_weather", parameter("city", "<tool_call>\n<function=noop>")),
        "",
        [("get_weather", '{"city": "<tool_call>\\n<function=noop>"}')],
    ),
    "name never ends": ("<tool_call><function=" + "x" * 300, "<tool_call><function=" + "x" * 300, []),
    "nothing but blanks": (" \n ", " \n ", []),
    "almost a tag at the end": ("see <tool_cal", "see <tool_cal", []),
}


@pytest.mark.parametrize("name", CASES)
def test_parse_does_not_depend_on_pieces(name):
    text, content, calls = CASES[name]
    randomly = random.Random(name)
    for size in (*range(1, 25), len(text)):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert parse(pieces) == (content, calls), size
    for _ in range(20):
        cuts = sorted(randomly.sample(range(len(text)), min(5, len(text) - 1)))
        assert parse([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]) == (content, calls)


def test_random_calls_survive_random_pieces():
    randomly = random.Random(18)
    words = ["Bern", "<tool_call>", "</parameter>", "\n", " ", "日本", '"', "\\", "<parameter=x>", "</function>", "{}"]
    for _ in range(60):
        value = "".join(randomly.choices(words[:6] + words[6:8], k=randomly.randint(0, 8)))
        text = "Look: " + call("get_weather", parameter("city", value), parameter("days", "2")) + " end"
        whole = parse([text])
        assert whole[1] == [("get_weather", json.dumps({"city": value, "days": 2}, ensure_ascii=False))]
        cuts = sorted(randomly.sample(range(1, len(text)), randomly.randint(1, 12)))
        assert parse([text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]) == whole


def test_prose_is_held_no_longer_than_the_tag_can_match():
    parser = ToolParser(SCHEMAS, MARKUP)
    sent = ""
    text = "The `<tool_call>` tag is " + "x" * 300
    for at, character in enumerate(text):
        sent += "".join(delta.text for delta in parser.feed(character) if isinstance(delta, Content))
        assert at + 1 - len(sent) <= len("<tool_call>")


def test_unknown_call_is_passed_on_while_it_is_written():
    parser = ToolParser(SCHEMAS, MARKUP)
    start = "<tool_call>\n<function=other>\n<parameter=a>\n" + "x" * 100
    sent = "".join(delta.text for delta in parser.feed(start) if isinstance(delta, Content))
    assert sent == start


def test_single_call_ends_the_reply():
    assert parse([CALL + CALL + " more"], single=True) == ("", [BERN])


def value_of(text: str, schema) -> object:
    _, calls = parse([call("f", parameter("x", text))], {"f": {"properties": {"x": schema}}})
    return json.loads(calls[0][1])["x"]


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("  two  spaces ", {"type": "string"}, "  two  spaces "),
        ("5", {"type": "string"}, "5"),
        ("\n\n", {"type": "string"}, "\n\n"),
        ("5", {"type": "integer"}, 5),
        ("1.0", {"type": "integer"}, 1),
        ("1.5", {"type": "integer"}, "1.5"),
        ("true", {"type": "integer"}, "true"),
        ("2.5", {"type": "number"}, 2.5),
        ("NaN", {"type": "number"}, "NaN"),
        ("True", {"type": "boolean"}, True),
        ("false", {"type": "boolean"}, False),
        ("None", {"type": "null"}, None),
        ('{"a": [1, "é"]}', {"type": "object"}, {"a": [1, "é"]}),
        ("{'a': True}", {"type": "object"}, {"a": True}),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ("(1, 2)", {"type": "array"}, [1, 2]),
        ("[1, 2", {"type": "array"}, "[1, 2"),
        ("__import__('os')", {"type": "object"}, "__import__('os')"),
        ("[" * 5000 + "]" * 5000, {"type": "array"}, "[" * 5000 + "]" * 5000),
        ("null", {"type": ["string", "null"]}, None),
        ("word", {"type": ["integer", "string"]}, "word"),
        ("7", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 7),
        ("1", {"enum": ["1", "2"]}, "1"),
        ("2", {"enum": [1, 2]}, 2),
        ("3", None, 3),
        ("word", None, "word"),
        ('"quoted"', None, '"quoted"'),
        ("{'a': 1}", {"$ref": "#/$defs/none"}, {"a": 1}),
    ],
)
def test_values_are_typed_by_the_schema(text, schema, value):
    assert value_of(text, schema) == value
