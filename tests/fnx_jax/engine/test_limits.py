"""What is refused before it is queued, and that the message names the field and the number."""

from dataclasses import replace

import pytest

from fnx_jax.engine.fake import FakeSteps
from fnx_jax.engine.limits import EngineConfig, check_request, reply_limit
from fnx_jax.engine.request import EngineError, Request, SamplingParams

STEPS = FakeSteps(lanes=2, context=32, page=8, pages=3, vocabulary=64)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ((), "prompt: empty"),
        (tuple(range(32)), "prompt: 32 tokens .* context of 32"),
        ((1, 64), "prompt: token id 64 .* 64 ids"),
        ((-1,), "prompt: token id -1"),
        ((1.5,), "prompt: token ids must be integers"),
        ((2**80,), "prompt: token ids must be integers"),
    ],
)
def test_bad_prompt_is_refused_by_name(prompt, message):
    with pytest.raises(EngineError, match=message):
        check_request(Request("r", prompt, SamplingParams(max_tokens=1)), STEPS)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_k": 2**31},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": 1.5},
        {"presence_penalty": float("nan")},
        {"frequency_penalty": float("inf")},
        {"repetition_penalty": 0.0},
        {"seed": 2**64},
        {"seed": -(2**63) - 1},
        {"choice": -1},
        {"choice": 2**31},
        {"max_tokens": -1},
        {"min_tokens": -1},
        {"logprobs": 21},
        {"prompt_logprobs": -1},
        {"logit_bias": ((64, 1.0),)},
        {"logit_bias": ((1, float("nan")),)},
        {"eos_token_ids": (99,)},
        {"stop_token_ids": (-2,)},
    ],
)
def test_bad_sampling_field_is_refused_by_name(change):
    sampling = replace(SamplingParams(max_tokens=1), **change)
    with pytest.raises(EngineError, match=f"^{next(iter(change))}: "):
        check_request(Request("r", (1,), sampling), STEPS)


@pytest.mark.parametrize("seed", [0, -(2**63), 2**64 - 1])
def test_any_64_bit_seed_is_taken(seed):
    check_request(Request("r", (1,), SamplingParams(seed=seed)), STEPS)


def test_window_that_the_whole_pool_cannot_hold_is_refused():
    check_request(Request("r", (1,) * 20, SamplingParams(max_tokens=4)), STEPS)
    with pytest.raises(EngineError, match="4 pages of 8 positions, the cache has 3"):
        check_request(Request("r", (1,) * 20, SamplingParams(max_tokens=5)), STEPS)


def test_reply_ends_where_the_context_does():
    assert reply_limit(Request("r", (1,) * 31, SamplingParams(max_tokens=9)), 32) == 1
    assert reply_limit(Request("r", (1,) * 8, SamplingParams(max_tokens=9)), 32) == 9


@pytest.mark.parametrize(
    "change", [{"max_queue": -1}, {"prefill_chunk": 0}, {"stall_rows": 0}, {"passes": 0}, {"max_prefill_stall_ms": 0.0}]
)
def test_bad_config_is_refused_by_name(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        EngineConfig(**change)
