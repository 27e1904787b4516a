"""Joins the chunks of a stream the way a client does, into the shape of a plain reply's choices."""

from typing import Any

TAIL = ("finish_reason", "stop_reason", "seed", "token_sha")


def join_chat(chunks: list[dict[str, Any]], choice: int = 0) -> dict[str, Any]:
    """One choice of a streamed chat reply."""
    texts = {"content": "", "reasoning_content": "", "reasoning": ""}
    out: dict[str, Any] = {"tool_calls": [], "logprobs": [], "token_ids": []}
    for part in (part for chunk in chunks for part in chunk["choices"] if part["index"] == choice):
        delta = part["delta"]
        for name in texts:
            texts[name] += delta.get(name) or ""
        for call in delta.get("tool_calls", ()):
            _join_call(out["tool_calls"], call)
        out["logprobs"] += (part["logprobs"] or {}).get("content", [])
        out["token_ids"] += part.get("token_ids", [])
        if part["finish_reason"] is not None:
            out |= {name: part[name] for name in TAIL}
    return out | texts


def _join_call(calls: list[dict[str, Any]], call: dict[str, Any]) -> None:
    if "id" in call:
        assert call["index"] == len(calls) and call["function"]["arguments"] == "" and call["type"] == "function"
        calls.append({"id": call["id"], "type": "function", "function": dict(call["function"])})
    else:
        assert set(call) == {"index", "function"}
        calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]


def plain_chat(choice: dict[str, Any]) -> dict[str, Any]:
    """A plain chat choice in the same shape; null and "" are the same to one who joins."""
    message = choice["message"]
    assert message.get("tool_calls") != []
    out = {name: message.get(name) or "" for name in ("content", "reasoning_content", "reasoning")}
    out["tool_calls"] = message.get("tool_calls", [])
    out["logprobs"] = (choice["logprobs"] or {}).get("content", [])
    out["token_ids"] = choice.get("token_ids", [])
    return out | {name: choice[name] for name in TAIL}


def join_completion(chunks: list[dict[str, Any]], choice: int = 0) -> dict[str, Any]:
    """One choice of a streamed completion."""
    out: dict[str, Any] = {"text": "", "token_ids": [], "logprobs": {}}
    for part in (part for chunk in chunks for part in chunk["choices"] if part["index"] == choice):
        out["text"] += part["text"]
        out["token_ids"] += part.get("token_ids", [])
        for name, values in (part["logprobs"] or {}).items():
            out["logprobs"].setdefault(name, []).extend(values)
        if part["finish_reason"] is not None:
            out |= {name: part[name] for name in TAIL}
    return out


def plain_completion(choice: dict[str, Any]) -> dict[str, Any]:
    """A plain completion's choice in the same shape."""
    out = {name: choice[name] for name in ("text", *TAIL)}
    return out | {"token_ids": choice.get("token_ids", []), "logprobs": choice["logprobs"] or {}}
