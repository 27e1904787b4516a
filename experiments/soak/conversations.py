"""Host side: long conversations side by side; every turn is that of a server which keeps nothing of those before."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from experiments.http_client import Client, Usage, usage_of
from experiments.soak.finding import Finding
from experiments.soak.servers import Servers
from experiments.soak.text import code

SYSTEM = "You answer in Python, and you keep to the names that were given."


@dataclass(frozen=True)
class Turn:
    """One reply. content, reasoning: as the next prompt holds them."""

    token_sha: str
    content: str
    reasoning: str
    usage: Usage


def conversations(servers: Servers, count: int, turns: int, max_tokens: int, fresh: int) -> Finding:
    """Holds `count` conversations at once. Raises HttpError, StartError.

    fresh: turns of each, evenly apart and the last among them, that are asked of a new process too.
    """
    with ThreadPoolExecutor(count) as pool:
        held = list(pool.map(lambda number: _hold(servers.served, number, turns, max_tokens), range(count)))
    wrong, unchecked = [], []
    new = {turns - 1 - turn * turns // fresh for turn in range(fresh)} if fresh else set()
    for number, said in enumerate(held):
        bodies = _bodies(number, said, max_tokens)
        for place, (turn, body) in enumerate(zip(said, bodies, strict=True)):
            for kind, sha in _others(servers, body, place in new):
                if sha != turn.token_sha:
                    wrong.append(f"conversation {number}, turn {place}: {turn.token_sha}, {sha} by the {kind} server")
    flat = [turn for said in held for turn in said]
    resumed = [turn.usage.cached for turn in flat if turn.usage.cached]
    accepted, drafted = sum(turn.usage.accepted for turn in flat), sum(turn.usage.drafted for turn in flat)
    if len({row % 16 for row in resumed}) < 8:
        unchecked.append(f"{len(resumed)} turns were resumed, at too few kinds of rows")
    if not 0 < accepted < drafted:
        unchecked.append(f"{drafted} drafts were tested, {accepted} accepted")
    return Finding(
        "conversations",
        len(flat),
        wrong,
        unchecked,
        {
            "conversations": count,
            "turns": turns,
            "turns_by_new_servers": count * len(new),
            "turns_resumed": len(resumed),
            "rows_of_prompts": sum(turn.usage.prompt_tokens for turn in flat),
            "rows_resumed": sum(resumed),
            "longest_prompt": max(turn.usage.prompt_tokens for turn in flat),
            "drafts_tested": drafted,
            "drafts_accepted": accepted,
        },
        {"conversations": hashlib.sha256("".join(turn.token_sha for turn in flat).encode()).hexdigest()[:16]},
    )


def _others(servers: Servers, body: Mapping[str, Any], fresh: bool) -> Iterator[tuple[str, str]]:
    """What servers that keep nothing make of a request."""
    yield "plain", ask(servers.plain, body).token_sha
    if fresh:
        with servers.fresh() as client:
            yield "new", ask(client, body).token_sha


def ask(client: Client, body: Mapping[str, Any]) -> Turn:
    """One chat request. Raises HttpError."""
    said = json.loads(client.read("/v1/chat/completions", {"model": client.model(), **body}))
    choice = said["choices"][0]
    message = choice["message"]
    content, reasoning = message.get("content") or "", message.get("reasoning_content") or ""
    return Turn(choice["token_sha"], content, reasoning, usage_of(said["usage"]))


def _hold(client: Client, number: int, turns: int, max_tokens: int) -> list[Turn]:
    said: list[Turn] = []
    for _ in range(turns):
        said.append(ask(client, _body(number, said, max_tokens)))
    return said


def _bodies(number: int, said: list[Turn], max_tokens: int) -> list[dict[str, Any]]:
    return [_body(number, said[:place], max_tokens) for place in range(len(said))]


def _body(number: int, said: list[Turn], max_tokens: int) -> dict[str, Any]:
    """The request after some turns. Odd conversations are greedy, even ones draw; some turns have no thinking."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    for place in range(len(said) + 1):
        messages.append({"role": "user", "content": code(1 + place % 3, seed=100 * number + place)})
        if place < len(said):
            turn = said[place]
            answer = {"role": "assistant", "content": turn.content}
            messages.append(answer | ({"reasoning_content": turn.reasoning} if turn.reasoning else {}))
    return {
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0.0 if number % 2 else 0.8,
        "seed": 1000 * number + len(said),
        "enable_thinking": len(said) % 5 == 4,
    }
