"""Host side: whether two recordings are equal, and where they first are not. Read next: locate.py."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from experiments.prove.record import Recording, Reply


@dataclass(frozen=True)
class Difference:
    """The first difference of a reply.

    position: of the token whose row or draw differs; of replies without ids, of the character. what: "logits" or the
    "token" drawn from them; "missing", one side has no such row; "finish", the replies end otherwise; "text".
    place: the first layer that differs, with the position of its row, where it was looked for.
    """

    request: str
    position: int
    what: Literal["logits", "token", "missing", "finish", "text"]
    place: str | None = None

    def __str__(self) -> str:
        return f"{self.request}: {self.what} at position {self.position}" + (f", {self.place}" if self.place else "")


def differences(wanted: Recording, found: Recording) -> list[Difference]:
    """The first difference of each reply of `found`, in order of position. Raises KeyError for an unknown request."""
    pairs = ((name, wanted.replies[name], reply) for name, reply in found.replies.items())
    first = (next(_differences(name, one, other), None) for name, one, other in pairs)
    return sorted((d for d in first if d is not None), key=lambda d: (d.position, d.request))


def equal(wanted: Recording, found: Recording) -> bool:
    """Whether every reply of `found` has the tokens, the end and the bits of logits that it has in `wanted`."""
    return not differences(wanted, found)


def smallest_margin(recording: Recording) -> float:
    """Least distance between the best two raw logits over all emitted positions; infinite where there are none."""
    return min(
        (row.margin for reply in recording.replies.values() for at, row in reply.rows.items() if at >= reply.prompt),
        default=float("inf"),
    )


def _differences(name: str, wanted: Reply, found: Reply) -> Iterator[Difference]:
    ends = [reply.prompt + len(reply.tokens) for reply in (wanted, found)]
    emitted = range(found.prompt, max(ends))
    for position in sorted({*wanted.rows, *found.rows, *emitted}):
        one, other = wanted.rows.get(position), found.rows.get(position)
        if one is None or other is None:
            if position < min(ends):
                yield Difference(name, position, "missing")
        elif one.digest != other.digest:
            yield Difference(name, position, "logits")
        if position >= found.prompt and _token(wanted, position) != _token(found, position):
            yield Difference(name, position, "token")
    if wanted.finish != found.finish:
        yield Difference(name, max(ends), "finish")


def _token(reply: Reply, position: int) -> int | None:
    index = position - reply.prompt
    return reply.tokens[index] if index < len(reply.tokens) else None
