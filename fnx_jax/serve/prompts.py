"""Host side: a conversation -> prompt text -> ids. The chat route and `/tokenize` both come through here.

Read next: messages.py, template.py; chat.py for what follows.
"""

import logging
import secrets
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fnx_jax.serve.assets import TextAssets
from fnx_jax.serve.errors import bad_request
from fnx_jax.serve.marks import message_places
from fnx_jax.serve.markup import Markup
from fnx_jax.serve.messages import normalise
from fnx_jax.serve.offers import ToolOffer
from fnx_jax.serve.reasoning import starts_in_reasoning
from fnx_jax.serve.settings import LateSystem
from fnx_jax.serve.template import TemplateError
from fnx_jax.serve.validate import Fields, refuse

log = logging.getLogger(__name__)
EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "xhigh", "xhigh": "xhigh", "max": "xhigh"}
RESERVED = ("messages", "tools", "add_generation_prompt")


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation. in_reasoning: it ends inside an open think block.

    marks: how many ids lie before places where other conversations may part from it.
    """

    text: str
    ids: tuple[int, ...]
    in_reasoning: bool
    marks: tuple[int, ...] = ()


def render_prompt(
    fields: Fields,
    offer: ToolOffer,
    assets: TextAssets,
    markup: Markup,
    late_system: LateSystem,
    marked: bool = False,
) -> Prompt:
    """Renders and encodes the `messages` of a request.

    Args: marked: look for the prompt's marks too.
    Raises: ApiError 400, carrying the template's message where it is the template that refuses.
    """
    if assets.template is None:
        raise refuse("messages", "need a chat template, which this checkpoint does not have")
    messages = normalise(fields.get("messages"), late_system)
    opens = _opens_turn(fields, messages)
    mark = "" if opens is not None else f"\ue000{secrets.token_hex(8)}\ue001"
    messages[-1] = messages[-1] | {"content": messages[-1]["content"] + mark}
    variables, template = template_variables(fields), assets.template
    render = lambda shown: template.render(shown, offer.tools, bool(opens), variables)  # noqa: E731
    try:
        text = render(messages)
    except TemplateError as error:
        raise bad_request(f"The chat template refused the request: {error}", "messages") from None
    if mark:
        text = _cut(text, mark)
    places = message_places(text, messages, render) if marked else []
    ids, marks = _encode_marked(assets, text, places)
    return Prompt(text, ids, starts_in_reasoning(text, markup), marks)


def encode(assets: TextAssets, text: str, param: str, add_special_tokens: bool = False) -> tuple[int, ...]:
    """Text to ids. Raises: ApiError 400 for text that has none."""
    ids = assets.tokenizer.encode(text, add_special_tokens)
    if not ids:
        raise refuse(param, "must come to at least one token")
    return ids


def _encode_marked(assets: TextAssets, text: str, places: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids, and how many of them end at or before each of `places`, without those before which there is none."""
    if not places:
        return encode(assets, text, "messages"), ()
    ids, ends = assets.tokenizer.encode_with_ends(text)
    if not ids:
        raise refuse("messages", "must come to at least one token")
    return ids, tuple(sorted({bisect_right(ends, place) for place in places} - {0}))


def template_variables(fields: Fields) -> dict[str, Any]:
    """Variables for the template: aliases first, `chat_template_kwargs` over them.

    An effort of "none" turns thinking off, unless `enable_thinking` says otherwise.
    """
    aliases: dict[str, Any] = {}
    effort = fields.get("reasoning_effort")
    if effort == "none":
        aliases["enable_thinking"] = False
    elif effort is not None:
        aliases["reasoning_effort"] = EFFORTS[effort]
    if fields.get("enable_thinking") is not None:
        aliases["enable_thinking"] = fields.get("enable_thinking")
    given: Mapping[str, Any] = fields.get("chat_template_kwargs", {})
    for name in given:
        if name in RESERVED:
            raise refuse(f"chat_template_kwargs.{name}", "may not be set here")
        if name in aliases and aliases[name] != given[name]:
            log.warning("chat_template_kwargs.%s wins over the request's own field", name)
    return aliases | dict(given)


def _opens_turn(fields: Fields, messages: list[dict[str, Any]]) -> bool | None:
    """Whether an assistant turn is opened; None where the last message is continued instead."""
    if not fields.get("continue_final_message"):
        return fields.get("add_generation_prompt", True)
    if fields.get("add_generation_prompt"):
        raise refuse("continue_final_message", "and add_generation_prompt exclude each other")
    if messages[-1]["role"] != "assistant":
        raise refuse("continue_final_message", "needs an assistant message at the end")
    return None


def _cut(text: str, mark: str) -> str:
    """The prompt up to the end of the last message's content, wherever the template put it."""
    at = text.rfind(mark)
    if at < 0:
        raise refuse("continue_final_message", "is not possible: the template leaves the last message out")
    return text[:at]
