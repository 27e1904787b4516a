"""Host side: one completion over HTTP, plain or streamed, from any server that speaks the OpenAI interface."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

TIMEOUT_S = 600.0
ROUNDS = "fnx:rounds_total"
"""Name of the rounds that a server of ours has run, among its totals."""


class HttpError(RuntimeError):
    """The server could not be asked, or refused; the message holds what it said. status: of a refusal."""

    def __init__(self, message: str, status: int | None = None):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Piece:
    """What one event of a stream brought. at_s: when it came. tokens: how many, 1 at least."""

    at_s: float
    tokens: int


@dataclass(frozen=True)
class Usage:
    """Tokens of a prompt, those of them that the server had kept, drafts tested and accepted; 0 where nobody says."""

    prompt_tokens: int
    cached: int
    drafted: int
    accepted: int


@dataclass(frozen=True)
class Answer:
    """A reply. token_sha, token_ids: None where the server gives none.

    cached: prompt tokens that the server had kept. accepted: drafted tokens in the reply. 0 where it does not say.
    begin_s, first_s, end_s: when it was asked for, when its first piece came, when it was complete.
    prompt_tokens, drafted: of the prompt; drafts that were tested. 0 where the server does not say.
    pieces: events with tokens, in order; none where the server gives no token ids.
    """

    text: str
    finish: str
    token_sha: str | None
    token_ids: tuple[int, ...] | None
    cached: int
    accepted: int
    begin_s: float
    first_s: float
    end_s: float
    prompt_tokens: int = 0
    drafted: int = 0
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Client:
    """base: the address up to and without /v1. key: for the Authorization header, or None."""

    base: str
    key: str | None = None

    def model(self) -> str:
        """The first served name. Raises HttpError."""
        with self._open("/v1/models", None) as reply:
            try:
                return json.load(reply)["data"][0]["id"]
            except (LookupError, TypeError) as error:
                raise HttpError(f"{self.base}/v1/models: no list of models: {error}") from error

    def info(self) -> dict[str, Any]:
        """What a server of ours tells of itself. Raises HttpError."""
        try:
            return json.loads(self.read("/v1/server_info"))
        except ValueError as error:
            raise HttpError(f"/v1/server_info: {error}") from error

    def totals(self) -> dict[str, float]:
        """Running totals of /metrics by name, those of all labels added. Raises HttpError."""
        totals: dict[str, float] = {}
        for line in self.read("/metrics").decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.partition("{")[0].split(" ")[0], line.rsplit(" ", 1)[-1]
                totals[name] = totals.get(name, 0.0) + float(value)
        return totals

    def read(self, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """What a path answers, to GET or, with a body, to POST. Raises HttpError."""
        with self._open(path, body) as reply:
            return reply.read()

    def complete(self, body: Mapping[str, Any]) -> Answer:
        """Posts to /v1/completions; `body["stream"]` says how the reply comes. Raises HttpError."""
        begin_s = time.perf_counter()
        first_s = None
        chunks, pieces = [], []
        with self._open("/v1/completions", body) as reply:
            for chunk in _events(reply) if body.get("stream") else [json.load(reply)]:
                now_s = time.perf_counter()
                if first_s is None and chunk.get("choices"):
                    first_s = now_s
                if tokens := sum(len(choice.get("token_ids") or ()) for choice in chunk.get("choices", ())):
                    pieces.append(Piece(now_s, tokens))
                chunks.append(chunk)
        end_s = time.perf_counter()
        return _joined(chunks, tuple(pieces), begin_s, end_s if first_s is None else first_s, end_s)

    @contextmanager
    def _open(self, path: str, body: Mapping[str, Any] | None) -> Iterator[Any]:
        """The reply, which may break off or be no JSON while it is read."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.base + path, data, headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                yield reply
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode("utf-8", "replace")
            raise HttpError(f"{path}: {error.code}: {said}", error.code) from error
        except (OSError, ValueError, HTTPException) as error:
            raise HttpError(f"{self.base}{path}: {error}") from error


def client_for(url: str, key: str | None) -> Client:
    """A client for an address with or without /v1 at its end."""
    return Client(url.rstrip("/").removesuffix("/v1"), key)


def usage_of(said: Mapping[str, Any]) -> Usage:
    """Reads a reply's `usage`."""
    details = said.get("completion_tokens_details") or {}
    accepted = details.get("accepted_prediction_tokens") or 0
    return Usage(
        said.get("prompt_tokens") or 0,
        (said.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        accepted + (details.get("rejected_prediction_tokens") or 0),
        accepted,
    )


def _events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        data = line.strip().removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data != b"[DONE]":
            yield json.loads(data)


def _joined(
    chunks: list[dict[str, Any]], pieces: tuple[Piece, ...], begin_s: float, first_s: float, end_s: float
) -> Answer:
    for chunk in chunks:
        if chunk.get("error"):
            raise HttpError(f"/v1/completions: {chunk['error']}")
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    if not choices:
        raise HttpError("/v1/completions: a reply without choices")
    ids = [choice["token_ids"] for choice in choices if choice.get("token_ids") is not None]
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    usage = usage_of(usages[-1] if usages else {})
    return Answer(
        text="".join(choice.get("text") or "" for choice in choices),
        finish=next((c["finish_reason"] for c in reversed(choices) if c.get("finish_reason")), ""),
        token_sha=next((c["token_sha"] for c in reversed(choices) if c.get("token_sha")), None),
        token_ids=tuple(token for part in ids for token in part) if ids else None,
        cached=usage.cached,
        accepted=usage.accepted,
        begin_s=begin_s,
        first_s=first_s,
        end_s=end_s,
        prompt_tokens=usage.prompt_tokens,
        drafted=usage.drafted,
        pieces=pieces,
    )
