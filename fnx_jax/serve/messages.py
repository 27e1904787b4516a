"""Host side: the messages of a request -> what chat templates expect. Faults name the message.

Arguments become mappings, content becomes text, developer becomes system, leading system messages become one.
Read next: template.py.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from fnx_jax.serve.settings import LateSystem
from fnx_jax.serve.validate import refuse

ROLES = ("system", "developer", "user", "assistant", "tool")
UNSERVED_PARTS = {
    "image_url": "images",
    "image": "images",
    "input_image": "images",
    "input_audio": "audio",
    "audio_url": "audio",
    "video": "videos",
    "video_url": "videos",
    "file": "files",
}
Message = dict[str, Any]


def normalise(messages: Any, late_system: LateSystem = "refuse") -> list[Message]:
    """Checks and rewrites the messages of a chat request.

    Args: messages: the field as it came. late_system: what to do with a system message after the first turn.
    Returns: messages with `role`, text `content` and, where given, `reasoning_content`, `tool_calls` with mapping
    arguments, `tool_call_id` and `name`; at most one system message, in front.
    Raises: ApiError 400.
    """
    if not isinstance(messages, list) or not messages:
        raise refuse("messages", "must be a list with at least one message")
    read = [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    read = _systems_first(read, late_system)
    if not any(message["role"] == "user" for message in read):
        raise refuse("messages", "must hold a user message")
    return read


def _message(message: Any, param: str) -> Message:
    if not isinstance(message, dict):
        raise refuse(param, "must be an object")
    role = message.get("role")
    if role == "function":
        raise refuse(f"{param}.role", "function is not supported; use tool")
    if not isinstance(role, str) or role not in ROLES:
        raise refuse(f"{param}.role", "must be one of " + ", ".join(ROLES))
    if message.get("function_call") is not None:
        raise refuse(f"{param}.function_call", "is not supported; use tool_calls")
    out: Message = {"role": "system" if role == "developer" else role}
    out["content"] = _content(message.get("content"), f"{param}.content")
    for name, key in (("name", "name"), ("tool_call_id", "tool_call_id")):
        if (value := message.get(name)) is not None:
            out[key] = _text(value, f"{param}.{name}")
    return out | (_assistant(message, param) if role == "assistant" else {})


def _assistant(message: Message, param: str) -> Message:
    out: Message = {}
    for name in ("reasoning_content", "reasoning"):
        if message.get(name) is not None:
            out["reasoning_content"] = _text(message[name], f"{param}.{name}")
            break
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise refuse(f"{param}.tool_calls", "must be a list")
    if calls:
        out["tool_calls"] = [_call(call, f"{param}.tool_calls[{index}]") for index, call in enumerate(calls)]
    return out


def _call(call: Any, param: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise refuse(f"{param}.function", "must be an object")
    name = _text(function.get("name"), f"{param}.function.name")
    arguments = _arguments(function.get("arguments"), f"{param}.function.arguments")
    given = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return given | {"type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(value: Any, param: str) -> dict[str, Any]:
    """Clients send back the JSON string they were given; templates walk a mapping."""
    if isinstance(value, str):
        try:
            # As strict as a body is: no NaN, and no half of a surrogate pair, which no tokenizer takes.
            value = msgspec.json.decode(value) if value.strip() else {}
        except (msgspec.MsgspecError, RecursionError):
            raise refuse(param, "must be a JSON object") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise refuse(param, "must be a JSON object")
    return value


def _content(value: Any, param: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refuse(param, "must be a string or a list of parts")
    return "".join(_part(part, f"{param}[{index}]") for index, part in enumerate(value))


def _part(part: Any, param: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in UNSERVED_PARTS:
        raise refuse(param, f"holds {kind}: {UNSERVED_PARTS[kind]} are not supported")
    if kind in ("text", "input_text", "output_text"):
        return _text(part.get("text"), f"{param}.text")
    if kind == "refusal":
        return _text(part.get("refusal"), f"{param}.refusal")
    raise refuse(f"{param}.type", "must be text")


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise refuse(param, "must be a string")
    return value


def _systems_first(messages: Sequence[Message], late: LateSystem) -> list[Message]:
    """One system message in front, or none."""
    leading = 0
    while leading < len(messages) and messages[leading]["role"] == "system":
        leading += 1
    front, rest = [message["content"] for message in messages[:leading]], list(messages[leading:])
    for index, message in enumerate(rest):
        if message["role"] != "system":
            continue
        if late == "refuse":
            raise refuse(f"messages[{leading + index}].role", "system may only come before the conversation")
        if late == "user":
            rest[index] = message | {"role": "user"}
        else:
            front.append(message["content"])
    rest = [message for message in rest if message["role"] != "system"]
    return ([{"role": "system", "content": "\n\n".join(front)}] if front else []) + rest
