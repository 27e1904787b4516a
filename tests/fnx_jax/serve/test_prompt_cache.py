"""A prompt that is sent again says so in its usage, and nothing else changes; where chats may part is found."""

from collections.abc import Iterator

import pytest

from fnx_jax.engine.prompt_cache.disk import DiskChoice
from fnx_jax.serve.marks import message_places
from fnx_jax.serve.markup import MARKUP
from fnx_jax.serve.offers import read_offer
from fnx_jax.serve.prompts import render_prompt
from fnx_jax.serve.template import TemplateError
from fnx_jax.serve.validate import Fields
from tests.fnx_jax.serve.support import TestServer, assets, events, ids, running, tokenizer

SYSTEM = {"role": "system", "content": "You are terse, and never explain what nobody asked about."}


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    """A server with room for kept states."""
    with running(slots=8, lanes=2) as found:
        found.script.say(None)
        yield found


def reply(response) -> tuple[str, int, int]:
    body = response.json()
    usage = body["usage"]
    details = usage["prompt_tokens_details"]
    return body["choices"][0]["token_sha"], usage["prompt_tokens"], details["cached_tokens"]


def test_a_prompt_sent_again_is_cached_and_answered_alike(server):
    sha, prompt, cached = reply(server.complete("A long enough prompt, sent twice.", max_tokens=5))
    assert cached == 0
    assert reply(server.complete("A long enough prompt, sent twice.", max_tokens=5)) == (sha, prompt, prompt - 1)
    refused = server.complete("A long enough prompt, sent twice.", max_tokens=5, cache_prompt=False)
    assert reply(refused) == (sha, prompt, 0)


def test_every_usage_of_a_stream_tells_it(server):
    messages = [{"role": "user", "content": "One more prompt, for streams."}]
    fields = dict(messages=messages, max_tokens=4, stream=True)
    fields["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    told = []
    for _ in range(2):
        found = events(server.http.post("/v1/chat/completions", json=fields).text)
        told.append({event["usage"]["prompt_tokens_details"]["cached_tokens"] for event in found})
        prompt = found[-1]["usage"]["prompt_tokens"]
    assert told == [{0}, {prompt - 1}]


def test_cached_tokens_count_once_whatever_n(server):
    server.complete("A prompt with several replies.", max_tokens=2)
    _, prompt, cached = reply(server.complete("A prompt with several replies.", max_tokens=2, n=3))
    assert cached == prompt - 1


def test_chats_share_their_system_block(server):
    def ask(text):
        messages = [SYSTEM, {"role": "user", "content": text}]
        return reply(server.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 3}))

    assert ask("What is the capital of France, and why?")[2] == 0
    block = len(ids("<|im_start|>system\neffort xhigh\n" + str(SYSTEM["content"]) + "<|im_end|>\n<|im_start|>user\n"))
    assert ask("Name a few of the longest rivers there are.")[2] == block


def test_metrics_count_what_was_reused(server):
    def counts():
        lines = server.http.get("/metrics").text.splitlines()
        return {
            line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(("fnx:", "vllm:p"))
        }

    before = counts()
    server.complete("A prompt whose rows are counted.", max_tokens=2)
    server.complete("A prompt whose rows are counted.", max_tokens=2)
    after, length = counts(), len(ids("A prompt whose rows are counted."))
    gained = {name: after[name] - before[name] for name in after if after[name] != before.get(name)}
    assert gained["vllm:prefix_cache_queries_total"] == 2 * length
    assert gained["vllm:prefix_cache_hits_total"] == gained["vllm:prompt_tokens_cached_total"] == length - 1
    assert gained["vllm:prompt_tokens_total"] == length + 1
    assert gained["fnx:prompts_resumed_total"] == 1 and gained["fnx:kept_states"] >= 1
    assert "fnx:reuse_failed_total" not in gained


def test_a_server_that_is_started_again_resumes_from_files(tmp_path):
    found = []
    for _ in range(2):
        with running(slots=4, disk=DiskChoice(tmp_path, 1 << 20, "f")) as server:
            server.script.say(None)
            found.append(reply(server.complete("A prompt from before the restart.", max_tokens=4)))
            text = server.http.get("/metrics").text
    (sha, prompt, none), again = found
    assert none == 0 and again == (sha, prompt, prompt - 1)
    assert 'fnx:states_read_total{engine="0",model_name="tiny"} 1.0' in text
    assert 'fnx:kept_states_on_disk{engine="0",model_name="tiny"} 1.0' in text


def test_without_slots_nothing_is_published_or_kept():
    with running(slots=0) as server:
        server.script.say(None)
        for _ in range(2):
            assert reply(server.complete("The same prompt again.", max_tokens=2))[2] == 0
        assert "prefix_cache" not in server.http.get("/metrics").text


def marks(*messages, **values) -> tuple[str, ...]:
    """What lies before each mark of a conversation."""
    fields = Fields({"messages": list(messages)} | values)
    prompt = render_prompt(fields, read_offer(fields), assets(), MARKUP, "refuse", marked=True)
    assert prompt.ids == tuple(ids(prompt.text))
    return tuple(tokenizer().decode(prompt.ids[:mark]) for mark in prompt.marks)


def test_marks_lie_after_the_system_block_and_before_the_last_answer():
    user = {"role": "user", "content": "hi"}
    first, second = {"role": "assistant", "content": "one"}, {"role": "assistant", "content": "two"}
    system = "<|im_start|>system\neffort xhigh\n" + str(SYSTEM["content"]) + "<|im_end|>\n<|im_start|>user\n"
    assert marks(user) == ()
    assert marks(SYSTEM, user) == (system,)
    found = marks(SYSTEM, user, first, user, second, user)
    assert found[0] == system and found[1].endswith("<|im_start|>assistant\n")
    assert found[1].count("<|im_start|>assistant") == 2 and "two" not in found[1]


def test_the_mark_of_an_answer_lies_before_its_reasoning():
    user = {"role": "user", "content": "hi"}
    answer = {"role": "assistant", "content": "one", "reasoning_content": "well"}
    (found,) = marks(user, answer, user)
    assert found.endswith("<|im_start|>assistant\n<think>\n")


def test_a_template_that_looks_at_contents_has_no_marks_and_no_harm():
    messages = [SYSTEM, {"role": "user", "content": "hi"}]

    def refuses(shown):
        raise TemplateError("no")

    assert message_places("You", messages, refuses) == []
    assert message_places("other", messages, lambda shown: "text " + shown[1]["content"]) == []
    assert message_places("hi", messages, lambda shown: "hi") == []
