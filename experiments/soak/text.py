"""Host side: prompts of a wanted length, in tokens of whatever model is served."""

import json

from experiments.http_client import Client


def code(lines: int, seed: int = 0) -> str:
    """Small functions, no two alike."""
    return "".join(
        f"def step_{seed}_{i}(value, count={i % 7}):\n    return value * {i + seed} + count\n\n\n" for i in range(lines)
    )


def prompt_of(client: Client, tokens: int, seed: int = 0) -> tuple[int, ...]:
    """Token ids of code, exactly so many. Raises HttpError."""
    ids: list[int] = []
    lines = 16
    while len(ids) < tokens:
        lines *= 2
        body = {"model": client.model(), "prompt": code(lines, seed), "add_special_tokens": False}
        ids = json.loads(client.read("/tokenize", body))["tokens"]
    return tuple(ids[:tokens])
