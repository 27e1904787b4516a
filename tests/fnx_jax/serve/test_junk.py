"""Requests of junk are answered or refused; they never become a fault of the server's own."""

import json
import random
from typing import Any

import pytest

from fnx_jax.serve.chat import chat_job
from fnx_jax.serve.completions import completions_job
from fnx_jax.serve.errors import ApiError
from fnx_jax.serve.fields import fields_of
from fnx_jax.serve.service import Service
from fnx_jax.serve.settings import ServerSettings
from fnx_jax.serve.tokenize import detokenize, tokenize
from fnx_jax.serve.validate import read_fields
from tests.fnx_jax.serve.support import CALL, WEATHER, Script, fake_model

WORDS = ["user", "assistant", "system", "tool", "role", "content", "text", "type", "function", "name", "arguments", ""]
WORDS += ["tool_calls", "parameters", "properties", "auto", "none", "{}", "<|im_end|>", "</think>", CALL, "\x00", "é"]
SCALARS = [None, True, False, 0, 1, -1, 3, 0.5, -0.0, 1e300, 2**63, 2**70, -(2**70), 10**400]


def junk(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(4 if depth < 4 else 2)
    if kind == 0:
        return draw.choice(SCALARS)
    if kind == 1:
        return draw.choice(WORDS)
    if kind == 2:
        return [junk(draw, depth + 1) for _ in range(draw.randrange(4))]
    return {draw.choice(WORDS): junk(draw, depth + 1) for _ in range(draw.randrange(4))}


def spoil(draw: random.Random, value: Any) -> Any:
    """Replaces a part of a good value."""
    if isinstance(value, dict) and value and draw.random() < 0.8:
        name = draw.choice(list(value))
        return value | {name: spoil(draw, value[name])}
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        return [*value[:at], spoil(draw, value[at]), *value[at + 1 :]]
    return junk(draw)


CALLS = [{"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}]
GOOD = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": None, "tool_calls": CALLS, "reasoning": "r"},
        {"role": "tool", "content": "t", "tool_call_id": "c"},
    ],
    "prompt": ["a", [5, 6]],
    "tokens": [5, 6],
    "tools": [WEATHER],
    "chat_template_kwargs": {"enable_thinking": True},
    "stream_options": {"include_usage": True},
    "stream": True,
}
WORK = {"chat": chat_job, "completions": completions_job, "tokenize": tokenize, "detokenize": detokenize}


@pytest.mark.parametrize("route", WORK)
def test_junk_is_refused_or_read(route):
    service = Service(ServerSettings())
    model = fake_model(Script())
    service.become_ready(model)
    model.engine.stop()
    names = set(fields_of(route)) - ({"prompt"} if route == "tokenize" else set())
    more = ["id"] if route in ("chat", "completions") else []
    read = 0
    for seed in range(300):
        draw = random.Random(seed)
        body = spoil(draw, {name: value for name, value in GOOD.items() if name in names})
        for name in draw.sample(sorted(names), draw.randrange(2)):
            body = body | {name: junk(draw)} if isinstance(body, dict) else body
        try:
            fields = read_fields(route, json.dumps(body).encode())
            WORK[route](service, fields, *more)
            read += 1
        except ApiError as error:
            assert error.status in (400, 404), error
            assert error.message
    assert 10 < read < 290
