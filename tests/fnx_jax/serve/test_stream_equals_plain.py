"""The parts of a stream join to the plain reply, whatever the reply says and however its tokens arrive."""

import random
from dataclasses import replace

import pytest

from fnx_jax.engine.ending import ending
from fnx_jax.engine.request import Emission, Finish, Request, SamplingParams, TokenLogprobs
from fnx_jax.serve.chat_format import ChatFormat
from fnx_jax.serve.choice import Choice
from fnx_jax.serve.completion_format import CompletionFormat
from fnx_jax.serve.replies import ReplyOptions
from fnx_jax.serve.transcript import TextRules, TextWatcher, Transcript
from tests.fnx_jax.serve.joining import join_chat, join_completion, plain_chat, plain_completion
from tests.fnx_jax.serve.support import CALL, WEATHER, byte_ids, ids, tokenizer

END = ids("<|im_end|>")[0]
FRAGMENTS = [
    ids("Hello, how are you?"),
    ids("</think>"),
    ids("</think>\n\n"),
    ids("\n"),
    ids(" \n\n "),
    ids("<think>"),
    ids("<tool_call>"),
    ids(CALL),
    ids(CALL + "\n"),
    ids(CALL.replace("get_weather", "other")),
    ids(CALL[: len(CALL) // 2]),
    ids(CALL.replace("Bern", "a</parameter>b")),
    ids("<function=get_weather>"),
    ids("</tool_call>"),
    ids("ST"),
    ids("STOP"),
    ids("<|endoftext|>"),
    byte_ids("naïve 日本 👩‍🚀"),
    byte_ids("👩")[:2],
    byte_ids("<tool_call>\n<function=get_weather>"),
    byte_ids("</think>"),
]
SCHEMAS = {"get_weather": WEATHER["function"]["parameters"]}


def random_rules(draw: random.Random, sampling: SamplingParams) -> TextRules:
    schemas = SCHEMAS if draw.random() < 0.7 else None
    return TextRules(
        in_reasoning=draw.random() < 0.6,
        schemas=schemas,
        single_call=schemas is not None and draw.random() < 0.2,
        stops=tuple(draw.sample(["STOP", "you", "本", "\n\n", "OP"], draw.choice([0, 0, 1, 2]))),
        keep_stop=draw.random() < 0.3,
        end_ids=frozenset(sampling.eos_token_ids),
        min_tokens=sampling.min_tokens,
        skip_special=draw.random() < 0.7,
    )


def reply_of(tokens: list[int], request: Request) -> tuple[list[int], Finish]:
    """Ends the reply where the engine would."""
    for count, token in enumerate(tokens, 1):
        matched = request.watcher.push(token) if request.watcher else None
        end = ending(request.sampling, token, count, request.sampling.max_tokens, matched)
        if end is not None:
            return tokens[:count], Finish(end.reason, end.stop_reason)
    raise AssertionError("the reply does not end")


def emissions_of(tokens: list[int], finish: Finish, draw: random.Random) -> list[Emission]:
    """The reply in random groups, the end with the last token or alone."""
    out, at = [], 0
    while at < len(tokens):
        size = draw.choice([1, 1, 2, 4, 16])
        group = tuple(tokens[at : at + size])
        entries = tuple(TokenLogprobs(token, -0.5 * token, ((token, -0.25), (3, -1.5))) for token in group)
        out.append(Emission("r", group, entries))
        at += size
    if out and draw.random() < 0.8:
        return [*out[:-1], replace(out[-1], finish=finish)]
    return [*out, Emission("r", finish=finish)]


def make(seed: int) -> tuple[list[int], Request, TextRules]:
    draw = random.Random(seed)
    tokens = [token for _ in range(draw.randint(0, 8)) for token in draw.choice(FRAGMENTS)] + [END]
    most, least = draw.choice([len(tokens), len(tokens), max(1, len(tokens) // 2)]), draw.choice([0, 0, 5])
    sampling = SamplingParams(eos_token_ids=(END,), max_tokens=most, min_tokens=min(least, most), seed=seed)
    rules = random_rules(draw, sampling)
    return tokens, Request("r", (1, 2), sampling, TextWatcher(tokenizer(), rules) if rules.watched else None), rules


@pytest.mark.parametrize("block", range(10))
def test_chat_stream_joins_to_the_plain_reply(block):
    for seed in range(block * 20, block * 20 + 20):
        tokens, request, rules = make(seed)
        draw = random.Random(seed + 1)
        reply, finish = reply_of(tokens, request)
        options = ReplyOptions(logprobs=True, top=1, return_token_ids=True, include_reasoning=draw.random() < 0.8)
        seen = []
        for _ in range(4):
            choice = Choice(0, request, Transcript(tokenizer(), rules))
            form = ChatFormat("id", tokenizer(), options, "both")
            chunks = form.opening([choice])
            for emission in emissions_of(reply, finish, draw):
                chunks += form.chunks(choice, choice.absorb(emission))
            plain = plain_chat(form.full(choice))
            assert join_chat([{"choices": [chunk]} for chunk in chunks]) == plain, seed
            assert all(chunk["delta"] for chunk in chunks[:-1]) and chunks[-1]["delta"] == {}
            assert all("" not in chunk["delta"].values() for chunk in chunks[1:])
            seen.append(plain)
        assert seen[1:] == seen[:-1], seed
        assert len(seen[0]["logprobs"]) == len(seen[0]["token_ids"]) == len(reply)


@pytest.mark.parametrize("echo", [False, True])
def test_completion_stream_joins_to_the_plain_reply(echo):
    for seed in range(60):
        tokens, request, rules = make(seed)
        draw = random.Random(seed + 1)
        rules = replace(rules, in_reasoning=False, schemas=None, single_call=False)
        request = replace(request, watcher=TextWatcher(tokenizer(), rules) if rules.watched else None)
        reply, finish = reply_of(tokens, request)
        options = ReplyOptions(logprobs=True, top=1, return_token_ids=True, echo=echo, skip_special=rules.skip_special)
        choice = Choice(0, request, Transcript(tokenizer(), rules))
        form = CompletionFormat(tokenizer(), options, {0: "ab"})
        chunks = []
        parts = emissions_of(reply, finish, draw)
        parts[0] = replace(parts[0], prompt_logprobs=(None, TokenLogprobs(2, -1.0)))
        for emission in parts:
            chunks += form.chunks(choice, choice.absorb(emission))
        plain = plain_completion(form.full(choice))
        assert join_completion([{"choices": [chunk]} for chunk in chunks]) == plain, seed
        assert plain["text"].startswith("ab" if echo else "")
        assert plain["token_ids"] == reply
        offsets = plain["logprobs"]["text_offset"]
        assert len(offsets) == len(reply) + 2 * echo and offsets == sorted(offsets)


def test_watcher_and_reply_cut_at_the_same_token():
    for seed in range(200):
        tokens, request, rules = make(seed)
        if not rules.watched:
            continue
        reply, finish = reply_of(tokens, request)
        transcript = Transcript(tokenizer(), rules)
        for token in reply:
            transcript.push(token)
        if isinstance(finish.stop_reason, str):
            assert transcript.stop == finish.stop_reason, seed
