"""Host side: token log-probabilities in the shapes of the two APIs. Read next: replies.py."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from fnx_jax.engine.request import TokenLogprobs
from fnx_jax.serve.decoder import TextDecoder
from fnx_jax.serve.tokenizer import Tokenizer

FLOOR = -9999.0
"""Stands for minus infinity, which JSON lacks."""


def json_logprob(value: float) -> float:
    """A log-probability that JSON can carry."""
    return FLOOR if math.isinf(value) else value


def chat_entry(tokenizer: Tokenizer, entry: TokenLogprobs, top: int) -> dict[str, Any]:
    """One element of a chat choice's `logprobs.content`, with the `top` likeliest."""
    likeliest = [_token(tokenizer, token, value) for token, value in entry.top[:top]]
    return _token(tokenizer, entry.token, entry.logprob) | {"top_logprobs": likeliest}


def _token(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.bytes_of(token)
    text = data.decode("utf-8", errors="replace")
    return {"token": text, "logprob": json_logprob(logprob), "bytes": list(data)}


class CompletionLogprobs:
    """Builds a completion choice's `logprobs` lists, token after token, with text offsets that run on.

    Args:
      top: likeliest tokens shown. start: offset of the first reply token, which is the length of an echoed prompt.
      skip_special: special tokens take no room in the text.
    """

    def __init__(self, tokenizer: Tokenizer, top: int, start: int = 0, skip_special: bool = True):
        self._tokenizer = tokenizer
        self._most = top
        self._offset = start
        self._decoder = TextDecoder(tokenizer, skip_special)

    def lists(self, tokens: Sequence[int], entries: Iterable[TokenLogprobs | None]) -> dict[str, Any]:
        """The four lists for the next tokens; a None entry is the prompt's first token."""
        out: dict[str, Any] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for token, entry in zip(tokens, entries, strict=True):
            out["tokens"].append(self._tokenizer.decode([token]))
            out["text_offset"].append(self._offset)
            out["token_logprobs"].append(None if entry is None else json_logprob(entry.logprob))
            out["top_logprobs"].append(None if entry is None else self._top(entry))
            self._offset += len(self._decoder.push(token))
        return out

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """Text to log-probability, the token itself included; of ids with the same text the likelier stays."""
        out: dict[str, float] = {}
        for token, value in (*entry.top[: self._most], (entry.token, entry.logprob)):
            out.setdefault(self._tokenizer.decode([token]), json_logprob(value))
        return out


def prompt_entries(
    tokenizer: Tokenizer, entries: Iterable[TokenLogprobs | None]
) -> list[dict[str, dict[str, Any]] | None]:
    """`prompt_logprobs`: per prompt token a map from id to its log-probability, text and, where known, rank."""
    out: list[dict[str, dict[str, Any]] | None] = []
    for entry in entries:
        out.append(None if entry is None else _ranked(tokenizer, entry))
    return out


def _ranked(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[str, dict[str, Any]]:
    ranks = {token: rank for rank, (token, _) in enumerate(entry.top, 1)}
    values = {entry.token: entry.logprob, **dict(entry.top)}
    return {
        str(token): {
            "logprob": json_logprob(value),
            "rank": ranks.get(token),
            "decoded_token": tokenizer.decode([token]),
        }
        for token, value in values.items()
    }
