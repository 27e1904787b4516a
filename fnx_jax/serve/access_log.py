"""Host side: one line per request, never its text. Read next: gate.py, which writes it."""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fnx_jax.serve.choice import Choice

log = logging.getLogger("fnx_jax.serve.access")
PROBES = frozenset({"/health", "/ping", "/metrics"})


@dataclass
class RequestRecord:
    """What is known of one HTTP request.

    id: as in X-Request-Id. begin_s, first_s: time.perf_counter at arrival and at the first reply token.
    status: of the reply; 499 where the client left. choices: its replies, where it has any. user: as given.
    """

    id: str
    method: str
    path: str
    begin_s: float = field(default_factory=time.perf_counter)
    first_s: float | None = None
    status: int = 0
    prompt_tokens: int = 0
    choices: Sequence[Choice] = ()
    user: str | None = None

    def fields(self, now_s: float) -> dict[str, Any]:
        """The line's fields, seconds and tokens per second rounded for reading."""
        out: dict[str, Any] = {"id": self.id, "method": self.method, "path": self.path, "status": self.status}
        out["seconds"] = round(now_s - self.begin_s, 4)
        if self.choices:
            tokens = sum(len(choice.tokens) for choice in self.choices)
            reasons = {choice.finish_reason or "abort" for choice in self.choices}
            cached = max(choice.cached_tokens for choice in self.choices)
            out |= {"prompt_tokens": self.prompt_tokens, "cached_tokens": cached, "completion_tokens": tokens}
            out["finish_reason"] = ",".join(sorted(reasons))
            if self.first_s is not None:
                out["ttft_s"] = round(self.first_s - self.begin_s, 4)
                out["tok_s"] = round(tokens / max(now_s - self.first_s, 1e-6), 1)
        return out | ({"user": self.user} if self.user is not None else {})


def write(record: RequestRecord) -> None:
    """Logs a finished request, probes only for debugging; `fields` is there for formatters that want them apart."""
    level = logging.DEBUG if record.path in PROBES else logging.INFO
    fields = record.fields(time.perf_counter())
    line = " ".join(f"{name}={_plain(value)}" for name, value in fields.items())
    log.log(level, "%s", line, extra={"fields": fields})


def _plain(value: Any) -> str:
    """Quotes what could be taken for another field or another line."""
    text = str(value)
    return text if text.isprintable() and " " not in text and text.isascii() else json.dumps(text)
