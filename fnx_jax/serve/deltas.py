"""Host side: the pieces a reply's text comes in. Streams send them, full replies join them.

Read next: transcript.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reasoning:
    """Text from inside the think block."""

    text: str


@dataclass(frozen=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A tool call begins; `index` counts calls from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of a call's arguments, a JSON text when joined."""

    index: int
    text: str


Delta = Reasoning | Content | CallStart | CallArguments


def merged(deltas: list[Delta]) -> list[Delta]:
    """Joins neighbours of the same kind, and drops empty ones; reading order stays."""
    out: list[Delta] = []
    run: list[str] = []
    for index, delta in enumerate(deltas):
        if isinstance(delta, CallStart):
            out.append(delta)
            continue
        run.append(delta.text)
        following = deltas[index + 1] if index + 1 < len(deltas) else None
        if type(following) is type(delta) and getattr(following, "index", 0) == getattr(delta, "index", 0):
            continue
        if joined := "".join(run):
            out.append(CallArguments(delta.index, joined) if isinstance(delta, CallArguments) else type(delta)(joined))
        run = []
    return out
