"""Host side: at which rows of a prompt its state is worth keeping. Read next: reuse.py."""

from collections.abc import Iterable, Iterator

from fnx_jax.engine.prompt_cache.entries import Kind
from fnx_jax.engine.request import Request


def choose_marks(request: Request, resumed: int, agreed: int, apart: int) -> dict[int, Kind]:
    """Returns the rows at which a prompt's pass stops to keep a state, and of what kind each is.

    One token before the end, since the next turn may spell the last one otherwise and a prompt that is sent again must
    have a row left to run; what the request names; and where this prompt and an earlier one part, if that is in its
    second half.

    Args:
      resumed: rows that are there already. agreed: tokens at the front that an earlier prompt had too.
      apart: least distance of a mark from another one and from `resumed`.
    """
    marks: dict[int, Kind] = {}
    if request.cache_prompt:
        for position, kind in _candidates(request, agreed):
            if all(abs(position - other) >= apart for other in (*marks, resumed)) and resumed < position:
                marks[position] = kind
    return marks


def _candidates(request: Request, agreed: int) -> Iterator[tuple[int, Kind]]:
    """The most useful first."""
    yield len(request.prompt) - 1, "prompt"
    yield from _shared(request.marks)
    if len(request.prompt) <= 2 * agreed < 2 * len(request.prompt):
        yield from _shared([agreed])


def _shared(positions: Iterable[int]) -> Iterator[tuple[int, Kind]]:
    return ((position, "shared") for position in positions)
