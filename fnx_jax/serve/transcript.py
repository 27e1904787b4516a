"""Host side: a reply's tokens -> its text deltas. The one place where text meaning is decided.

    token -> bytes -> characters -> reasoning | content -> stop strings -> tool calls

The engine's watcher and the HTTP reply run the same class over the same tokens, so that both see a stop at the same
token. Read next: decoder.py, reasoning.py, stops.py, tools.py in that order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fnx_jax.serve.decoder import TextDecoder
from fnx_jax.serve.deltas import Content, Delta, Reasoning, merged
from fnx_jax.serve.markup import MARKUP, Markup
from fnx_jax.serve.reasoning import ReasoningSplit
from fnx_jax.serve.stops import StopCut
from fnx_jax.serve.tokenizer import Tokenizer
from fnx_jax.serve.tools import ToolParser


@dataclass(frozen=True)
class TextRules:
    """How one reply's tokens are read.

    in_reasoning: the prompt left a think block open. schemas: offered functions, None for no tool calls.
    single_call: the reply ends after the first complete call. stops, keep_stop: stop strings, and whether what ended
    the reply stays in its text. end_ids: tokens that end the reply. min_tokens: no end and no stop counts before.
    skip_special: leave special tokens out.
    """

    in_reasoning: bool = False
    schemas: Mapping[str, Any] | None = None
    single_call: bool = False
    stops: tuple[str, ...] = ()
    keep_stop: bool = False
    end_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    skip_special: bool = True
    markup: Markup = field(default=MARKUP)

    @property
    def watched(self) -> bool:
        """Whether the text can end the reply."""
        return bool(self.stops) or self.single_call


class Transcript:
    """Reads one reply's tokens in order.

    tokens, reasoning_tokens, calls: counts so far.
    """

    def __init__(self, tokenizer: Tokenizer, rules: TextRules):
        tags = (tokenizer.id_of(tag) for tag in rules.markup.structural())
        keep = frozenset(tag for tag in tags if tag is not None)
        self._decoder = TextDecoder(tokenizer, rules.skip_special, keep)
        self._split = ReasoningSplit(rules.in_reasoning, rules.markup)
        self._stop = StopCut(rules.stops, rules.keep_stop)
        tools = ToolParser(rules.schemas, rules.markup, rules.single_call) if rules.schemas is not None else None
        self._tools = tools
        self._rules = rules
        self.tokens = 0
        self.reasoning_tokens = 0

    @property
    def in_reasoning(self) -> bool:
        """Whether the think block is still open."""
        return self._split.open

    @property
    def calls(self) -> int:
        """Complete tool calls so far."""
        return self._tools.calls if self._tools else 0

    @property
    def called(self) -> bool:
        """Whether the one call that was wanted is complete, which ends the reply."""
        return self._tools is not None and self._tools.done

    @property
    def stop(self) -> str | None:
        """What in the text has ended the reply: a stop string, or the closing tag of the one call wanted."""
        return self._rules.markup.call_close if self.called else self._stop.hit

    def push(self, token: int) -> list[Delta]:
        """Takes the next token; returns the deltas it makes certain."""
        self.tokens += 1
        counts = self.tokens > self._rules.min_tokens
        if counts and token in self._rules.end_ids and not self._rules.keep_stop:
            self.reasoning_tokens += self._split.open
            return []
        deltas = self._read(self._decoder.push(token), counts)
        self.reasoning_tokens += self._split.open
        return deltas

    def close(self) -> list[Delta]:
        """The deltas still held when the reply has ended."""
        if self.stop is not None:
            return self._tools.close() if self._tools else []
        deltas = self._read(self._decoder.flush(), counts=False)
        if held := self._split.close():
            deltas.append(Reasoning(held))
        deltas += self._content(self._stop.close())
        return merged(deltas + (self._tools.close() if self._tools else []))

    def _read(self, text: str, counts: bool) -> list[Delta]:
        reasoning, content = self._split.feed(text)
        deltas: list[Delta] = [Reasoning(reasoning)] if reasoning else []
        return deltas + self._content(self._stop.feed(content, counts))

    def _content(self, text: str) -> list[Delta]:
        if not text:
            return []
        return self._tools.feed(text) if self._tools else [Content(text)]


class TextWatcher:
    """Tells the engine, token by token, when the text has ended the reply."""

    def __init__(self, tokenizer: Tokenizer, rules: TextRules):
        self._transcript = Transcript(tokenizer, rules)

    def push(self, token: int) -> str | None:
        """Takes the next reply token; returns what it completes, a stop string or the one call wanted."""
        self._transcript.push(token)
        return self._transcript.stop
