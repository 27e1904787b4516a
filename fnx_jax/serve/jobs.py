"""Host side: a checked request -> engine requests and the choices that read them. What both APIs share.

Read next: chat.py, completions.py (one API each), answer.py (running a job).
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fnx_jax.engine.ending import end_ids
from fnx_jax.engine.request import Request, SamplingParams
from fnx_jax.serve.choice import Choice
from fnx_jax.serve.replies import Head, ReplyFormat, ReplyOptions
from fnx_jax.serve.service import LoadedModel
from fnx_jax.serve.transcript import TextRules, TextWatcher, Transcript
from fnx_jax.serve.validate import Fields, refuse


@dataclass(frozen=True)
class Job:
    """Everything about one HTTP request that is to be answered by the engine.

    prompt_tokens: of all its prompts. prompt_field: where the prompt came from, to name in errors.
    n: replies per prompt. headers: for the reply. user: for the log.
    """

    head: Head
    format: ReplyFormat
    options: ReplyOptions
    choices: Sequence[Choice]
    prompt_tokens: int
    prompt_field: str
    n: int
    stream: bool
    headers: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None


def make_head(prefix: str, fields: Fields, request_id: str, model: str) -> Head:
    """The head of a reply; its id is made from the request's."""
    return Head(f"{prefix}-{request_id}", int(time.time()), model)


def stream_options(fields: Fields) -> tuple[bool, bool]:
    """Whether usage comes at the end of the stream, and with every chunk.

    Raises: ApiError 400.
    """
    options: Mapping[str, Any] = fields.get("stream_options", {})
    if options and not fields.get("stream"):
        raise refuse("stream_options", "needs stream to be true")
    wanted = []
    for name in ("include_usage", "continuous_usage_stats"):
        value = options.get(name)
        if value is not None and not isinstance(value, bool):
            raise refuse(f"stream_options.{name}", "must be true or false")
        wanted.append(bool(value))
    return wanted[0], wanted[1]


def text_rules(fields: Fields, sampling: SamplingParams, **chat: Any) -> TextRules:
    """How the reply's tokens are read; `chat` adds what only chat has."""
    return TextRules(
        stops=fields.get("stop", ()),
        keep_stop=fields.get("include_stop_str_in_output", False),
        end_ids=end_ids(sampling),
        min_tokens=sampling.min_tokens,
        skip_special=fields.get("skip_special_tokens", True),
        **chat,
    )


def make_choices(
    model: LoadedModel,
    ids: tuple[int, ...],
    sampling: SamplingParams,
    rules: TextRules,
    n: int,
    first: int = 0,
    **more: Any,
) -> list[Choice]:
    """n replies to one prompt; they share the seed and differ in their choice number.

    Args: first: index of the first in the answer. more: `cache_prompt`, `marks` and `budget` as in Request.
    """
    tokenizer = model.assets.tokenizer
    choices = []
    for number in range(n):
        watcher = TextWatcher(tokenizer, rules) if rules.watched else None
        request = Request(secrets.token_hex(12), ids, replace(sampling, choice=number), watcher, **more)
        choices.append(Choice(first + number, request, Transcript(tokenizer, rules)))
    return choices
