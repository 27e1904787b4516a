"""Host side: choices in the shape of /v1/chat/completions, whole and as deltas. Read next: replies.py, deltas.py."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fnx_jax.engine.request import TokenLogprobs
from fnx_jax.serve.choice import Choice, Piece
from fnx_jax.serve.deltas import CallArguments, CallStart, Content, Delta, Reasoning
from fnx_jax.serve.logprobs import chat_entry
from fnx_jax.serve.replies import Pending, ReplyOptions, ending
from fnx_jax.serve.settings import ReasoningField
from fnx_jax.serve.tokenizer import Tokenizer


class ChatFormat:
    """Writes chat choices; see ReplyFormat.

    Args: reply_id: seeds the ids of tool calls. reasoning_field: names under which reasoning is sent.
    """

    reply_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    reasoning = True

    def __init__(self, reply_id: str, tokenizer: Tokenizer, options: ReplyOptions, reasoning_field: ReasoningField):
        self._reply_id = reply_id
        self._tokenizer = tokenizer
        self._options = options
        both = ("reasoning_content", "reasoning")
        self._reasoning_names = both if reasoning_field == "both" else (reasoning_field,)
        self._pending: defaultdict[int, Pending] = defaultdict(Pending)

    def opening(self, choices: Sequence[Choice]) -> list[dict[str, Any]]:
        """One role delta a choice."""
        return [self._chunk(choice, {"role": "assistant", "content": ""}) for choice in choices]

    def chunks(self, choice: Choice, piece: Piece) -> list[dict[str, Any]]:
        """One chunk a delta; tokens ride on the first, or wait."""
        pending = self._pending[choice.index]
        pending.add(piece)
        deltas = [
            delta for delta in piece.deltas if self._options.include_reasoning or not isinstance(delta, Reasoning)
        ]
        out = [self._chunk(choice, self._delta(choice, delta)) for delta in deltas]
        if piece.ended:
            out.append(self._chunk(choice, {}) | ending(choice))
        if out:
            out[0] |= self._token_fields(*pending.take())
        return out

    def full(self, choice: Choice) -> dict[str, Any]:
        """The whole message with its ending."""
        fields = {"index": choice.index, "message": self._message(choice)}
        return fields | self._token_fields(choice.tokens, choice.logprobs) | ending(choice)

    def extras(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Prompt ids where asked for; all choices share one prompt."""
        return {"prompt_token_ids": choices[0].request.prompt} if self._options.return_token_ids else {}

    def _chunk(self, choice: Choice, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _token_fields(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        fields: dict[str, Any] = {"logprobs": None}
        if self._options.logprobs:
            entries = [chat_entry(self._tokenizer, entry, self._options.top) for entry in logprobs]
            fields["logprobs"] = {"content": entries}
        return fields | ({"token_ids": list(tokens)} if self._options.return_token_ids else {})

    def _delta(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        match delta:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return dict.fromkeys(self._reasoning_names, text)
            case CallStart(index, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": self._call_id(choice, index), "type": "function", "function": function}
                return {"tool_calls": [call]}
            case CallArguments(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

    def _message(self, choice: Choice) -> dict[str, Any]:
        content = "".join(delta.text for delta in choice.deltas if isinstance(delta, Content))
        reasoning = "".join(delta.text for delta in choice.deltas if isinstance(delta, Reasoning))
        calls = self._calls(choice)
        silent = not content and (calls or choice.transcript.in_reasoning)
        message: dict[str, Any] = {"role": "assistant", "content": None if silent else content}
        if self._options.include_reasoning:
            message |= dict.fromkeys(self._reasoning_names, reasoning or None)
        return message | ({"tool_calls": calls} if calls else {})

    def _calls(self, choice: Choice) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []
        for delta in choice.deltas:
            if isinstance(delta, CallStart):
                function = {"name": delta.name, "arguments": ""}
                calls.append({"id": self._call_id(choice, delta.index), "type": "function", "function": function})
            elif isinstance(delta, CallArguments):
                calls[delta.index]["function"]["arguments"] += delta.text
        return calls

    def _call_id(self, choice: Choice, index: int) -> str:
        seed = f"{self._reply_id}/{choice.index}/{index}"
        return "call_" + hashlib.sha256(seed.encode()).hexdigest()[:24]
