"""Reasoning and content are told apart by the prompt and the first closing tag."""

import pytest

from fnx_jax.serve.markup import MARKUP, overlap
from fnx_jax.serve.reasoning import ReasoningSplit, starts_in_reasoning
from tests.fnx_jax.serve.support import ids

CASES = [
    # open, text, reasoning, content
    (True, "why\n</think>\n\nanswer", "why", "answer"),
    (True, "why</think>answer", "why", "answer"),
    (True, "only thoughts", "only thoughts", ""),
    (True, "thoughts\n\n", "thoughts\n\n", ""),
    (True, "</think>\n\n\nanswer\n", "", "answer\n"),
    (True, "a</think>b</think>c", "a", "b</think>c"),
    (True, "a</thin>k\n</think>b", "a</thin>k", "b"),
    (True, "a\n</thinking\n\n</think>\n", "a\n</thinking", ""),
    (False, "answer</think>more", "", "answer</think>more"),
    (False, "\n\nanswer", "", "\n\nanswer"),
]


def split(open_: bool, pieces: list[str]) -> tuple[str, str]:
    splitter = ReasoningSplit(open_, MARKUP)
    parts = [splitter.feed(piece) for piece in pieces] + [(splitter.close(), "")]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize(("open_", "text", "reasoning", "content"), CASES)
def test_split_does_not_depend_on_pieces(open_, text, reasoning, content):
    for size in range(1, len(text) + 1):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert split(open_, pieces) == (reasoning, content), size


def test_reasoning_is_held_back_no_longer_than_the_tag_can_match():
    splitter = ReasoningSplit(True, MARKUP)
    assert splitter.feed("a </thi") == ("a ", "")
    assert splitter.feed("ef") == ("</thief", "")


@pytest.mark.parametrize(
    ("prompt", "inside"),
    [
        ("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\nwhat is <think>?<|im_end|>\n", False),
        ("<|im_start|>user\nwhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think>\nfirst, I", True),
    ],
)
def test_the_prompt_decides_where_a_reply_starts(prompt, inside):
    assert starts_in_reasoning(prompt, MARKUP) is inside


def test_overlap_is_a_proper_beginning():
    assert overlap("x<too", "<tool>") == 4
    assert overlap("x<tool>", "<tool>") == 0
    assert overlap("aa", "aab") == 2


def test_a_budget_closes_reasoning_as_the_template_does(server):
    server.script.say("one two three four five six")
    body = server.chat(thinking_token_budget=4, return_token_ids=True).json()
    choice = body["choices"][0]
    closing = ids("\n</think>\n\n")
    assert choice["token_ids"][: 4 + len(closing)] == ids("one two three four five six")[:4] + closing
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] >= 4
    plain = server.chat(thinking_token_budget=4, draft=False).json()["choices"][0]
    streamed = server.chat(thinking_token_budget=4, stream=True).text
    assert plain["token_sha"] == choice["token_sha"] and choice["token_sha"] in streamed


@pytest.mark.parametrize("more", [{"enable_thinking": False}, {}])
def test_a_budget_that_is_not_reached_changes_nothing(server, more):
    server.script.say("a</think>b and so on")
    first, second = (server.chat(**more, **bound).json() for bound in ({}, {"thinking_token_budget": 3}))
    assert first["choices"][0]["token_sha"] == second["choices"][0]["token_sha"]


def test_a_budget_and_logprobs_exclude_each_other(server):
    reply = server.chat(thinking_token_budget=4, logprobs=True)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "thinking_token_budget"
