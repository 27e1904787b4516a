"""Host side: where in a conversation's prompt others may begin to differ from it. Read next: prompts.py.

After the leading system block, which conversations share, and before the last assistant message, which a next turn may
spell otherwise. A rendering with strange words in these places shows where they lie in the one without.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from fnx_jax.serve.template import TemplateError

Message = dict[str, Any]


def message_places(text: str, messages: Sequence[Message], render: Callable[[list[Message]], str]) -> list[int]:
    """Returns, in characters, where the contents of those messages begin in a prompt; fewer where it cannot be told.

    Args: text: the prompt. messages: what it was rendered from. render: renders others in the same way.
    """
    words = {index: f"\ue000{secrets.token_hex(8)}\ue001" for index in _chosen(messages)}
    if not words:
        return []
    changed = [_opened(message, words.get(index, "")) for index, message in enumerate(messages)]
    try:
        rendered = render(changed)
    except TemplateError:
        return []
    places = []
    for word in words.values():
        before, found, _ = rendered.partition(word)
        for other in words.values():
            before = before.replace(other, "")
        if found and text.startswith(before):
            places.append(len(before))
    return places


def _chosen(messages: Sequence[Message]) -> list[int]:
    chosen = [1] if len(messages) > 1 and messages[0]["role"] == "system" else []
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    return sorted({*chosen, *answers[-1:]})


def _opened(message: Message, word: str) -> Message:
    """The message with a word in front of whatever it may begin with."""
    front = {name: word + message[name] for name in ("content", "reasoning_content") if message.get(name) is not None}
    return message | front
