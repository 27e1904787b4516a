"""Log-probabilities in the shapes of the two APIs."""

import math

from fnx_jax.engine.request import TokenLogprobs
from fnx_jax.serve.logprobs import CompletionLogprobs, chat_entry, prompt_entries
from tests.fnx_jax.serve.support import byte_ids, ids, tokenizer

A, B = byte_ids("ab")
HALF = byte_ids("é")[0]


def test_minus_infinity_is_a_number():
    entry = chat_entry(tokenizer(), TokenLogprobs(A, -math.inf, ((B, -0.5), (A, -math.inf))), 2)
    assert entry["logprob"] == -9999.0
    assert [top["logprob"] for top in entry["top_logprobs"]] == [-0.5, -9999.0]


def test_bytes_are_those_of_half_a_character():
    entry = chat_entry(tokenizer(), TokenLogprobs(HALF, -1.0), 0)
    assert entry["bytes"] == [0xC3] and entry["token"] == "\ufffd" and entry["top_logprobs"] == []


def test_only_as_many_of_the_likeliest_as_asked_for():
    entry = TokenLogprobs(A, -3.0, ((B, -0.5), (HALF, -0.7), (A, -3.0)))
    assert [top["token"] for top in chat_entry(tokenizer(), entry, 1)["top_logprobs"]] == ["b"]
    lists = CompletionLogprobs(tokenizer(), 1).lists([A], [entry])
    assert lists["top_logprobs"] == [{"b": -0.5, "a": -3.0}]


def test_offsets_count_whole_characters_and_run_on():
    tokens = byte_ids("aéb")
    lists = CompletionLogprobs(tokenizer(), 0, start=2)
    entries = [TokenLogprobs(token, -1.0) for token in tokens]
    first, second = lists.lists(tokens[:2], entries[:2]), lists.lists(tokens[2:], entries[2:])
    assert first["text_offset"] + second["text_offset"] == [2, 3, 3, 4]


def test_special_tokens_take_no_room_where_they_are_left_out():
    tokens = [*ids("<|im_end|>"), A]
    entries = [TokenLogprobs(token, -1.0) for token in tokens]
    assert CompletionLogprobs(tokenizer(), 0).lists(tokens, entries)["text_offset"] == [0, 0]
    shown = CompletionLogprobs(tokenizer(), 0, skip_special=False).lists(tokens, entries)
    assert shown["text_offset"] == [0, len("<|im_end|>")]


def test_prompt_entries_tell_rank_where_it_is_known():
    entries = prompt_entries(tokenizer(), [None, TokenLogprobs(A, -3.0, ((B, -0.5),))])
    assert entries[0] is None and entries[1] is not None
    assert entries[1][str(B)] == {"logprob": -0.5, "rank": 1, "decoded_token": "b"}
    assert entries[1][str(A)] == {"logprob": -3.0, "rank": None, "decoded_token": "a"}
