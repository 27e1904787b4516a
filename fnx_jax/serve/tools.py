"""Host side: finds tool calls in the content of a reply. What is not a complete, known call stays text.

A call is shown only when it is complete, because a call that is cut or malformed must end up as content and a stream
can't take back what it sent. Read next: call_scanner.py (one call), tool_values.py (its arguments).
"""

import json
from collections.abc import Mapping
from typing import Any

from fnx_jax.serve.call_scanner import CallScanner
from fnx_jax.serve.deltas import CallArguments, CallStart, Content, Delta
from fnx_jax.serve.markup import Markup, overlap
from fnx_jax.serve.tool_values import typed_value

Schemas = Mapping[str, Any]
"""Function name to the JSON schema of its parameters."""


class ToolParser:
    """Splits content into text and calls; the joined result depends on the text alone, not on its pieces.

    White space that stands alone before, between or after calls is dropped. An unknown function's call is text.

    Args: schemas: the offered functions. single: nothing after the first call counts.
    """

    def __init__(self, schemas: Schemas, markup: Markup, single: bool = False):
        self.calls = 0
        self._schemas = schemas
        self._markup = markup
        self._single = single
        self._text = ""
        self._sent = 0
        self._blank = True
        self._scanner: CallScanner | None = None

    @property
    def done(self) -> bool:
        """Whether the one call that was wanted is complete."""
        return self._single and self.calls > 0

    def feed(self, text: str) -> list[Delta]:
        """Takes more content; returns what is certain."""
        self._text += text
        out: list[Delta] = []
        while not self.done and (self._find_call(out) if self._scanner is None else self._read_call(out)):
            pass
        return out

    def close(self) -> list[Delta]:
        """The rest when the reply ends: a cut call is content, blanks after a call are nothing."""
        rest, self._text = self._text[self._sent :], ""
        return [Content(rest)] if rest and not self.done and (rest.strip() or not self.calls) else []

    def _find_call(self, out: list[Delta]) -> bool:
        tag = self._markup.call_open
        at = self._text.find(tag)
        ready = at if at >= 0 else len(self._text) - overlap(self._text, tag)
        if not self._blank or self._text[:ready].strip():
            self._emit(ready, out)
        if at < 0:
            self._cut(self._sent)
            return False
        self._scanner = CallScanner(self._markup, at)
        return True

    def _read_call(self, out: list[Delta]) -> bool:
        scanner = self._scanner
        assert scanner is not None
        verdict = scanner.scan(self._text)
        known = scanner.name is None or scanner.name in self._schemas
        if verdict == "more":
            if not known:
                self._emit(scanner.spoken(self._text), out)
            return False
        if verdict == "call" and known:
            out += self._call(scanner)
            self._blank = True
        else:
            self._emit(scanner.at, out)
        self._cut(scanner.at)
        self._scanner = None
        return True

    def _emit(self, end: int, out: list[Delta]) -> None:
        """Sends the text up to `end` that has not been sent."""
        if end > self._sent:
            out.append(Content(self._text[self._sent : end]))
            self._sent, self._blank = end, False

    def _cut(self, end: int) -> None:
        """Forgets the text up to `end`; a segment ends there."""
        self._text, self._sent = self._text[end:], 0

    def _call(self, scanner: CallScanner) -> list[Delta]:
        index, self.calls = self.calls, self.calls + 1
        name = scanner.name or ""
        values = {key: self._value(name, key, raw) for key, raw in scanner.parameters.items()}
        # One piece a parameter: together they are json.dumps(values).
        pieces = [json.dumps({key: value}, ensure_ascii=False)[1:-1] for key, value in values.items()]
        arguments = [CallArguments(index, (", " if place else "{") + piece) for place, piece in enumerate(pieces)]
        return [CallStart(index, name), *arguments, CallArguments(index, "}" if pieces else "{}")]

    def _value(self, name: str, key: str, raw: str) -> Any:
        schema = self._schemas[name]
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        return typed_value(raw, properties.get(key) if isinstance(properties, Mapping) else None, schema)
