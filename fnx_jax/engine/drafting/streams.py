"""Host side: what the draft policy is told of a lane, and what it says. Read next: policy.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Source = Literal["plain", "forced", "copy", "head"]


@dataclass(frozen=True)
class Stream:
    """A lane that decodes, as it stands between two rounds.

    order: the request's number, never used twice. tokens: prompt and reply, the pending token last; only ever
    appended to. room: reply tokens it may still commit, at least 1. drafts: whether it may have any.
    held, chances: drafts of the head for the tokens after the pending one, and their chances, where known.
    forced: tokens that follow the pending one whatever is drawn.
    """

    order: int
    tokens: Sequence[int]
    room: int
    drafts: bool = True
    held: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    forced: tuple[int, ...] = ()


@dataclass(frozen=True)
class Window:
    """What follows a stream's pending token in the next round.

    offered: proposals; the first `tested` of them get a row. Those beyond still tell whether they would have landed.
    chances: of the offered ones, where the head gave them.
    """

    order: int
    source: Source = "plain"
    offered: tuple[int, ...] = ()
    tested: int = 0
    chances: tuple[float, ...] = ()

    @property
    def drafts(self) -> tuple[int, ...]:
        """The tokens that get a row."""
        return self.offered[: self.tested]


@dataclass(frozen=True)
class Outcome:
    """A window, and the reply tokens that its lane committed in the round."""

    window: Window
    committed: tuple[int, ...]

    def hits(self) -> list[bool]:
        """Whether each offered token landed, up to the first that did not; as far as the round can tell."""
        hits = []
        for offered, committed in zip(self.window.offered, self.committed, strict=False):
            hits.append(offered == committed)
            if not hits[-1]:
                break
        return hits


class Drafter(Protocol):
    """Who decides on drafts. Called in this order, once a round: windows, note_round, depths, note_draft."""

    @property
    def confidence(self) -> float:
        """Where the head shall end a chain, as in steps.DraftPlan."""
        ...

    def windows(self, streams: Sequence[Stream], rows: int, row_tile: int) -> list[Window]:
        """One window for each stream, in the order of their rows; none crosses a tile border."""
        ...

    def note_round(self, outcomes: Sequence[Outcome], ms: float, prompt_rows: int = 0) -> None:
        """Takes what a round committed and its wall time."""
        ...

    def depths(self, streams: Sequence[Stream]) -> tuple[int, ...]:
        """Drafts that each stream's head shall make now, 0 for none. All 0: there is no draft call."""
        ...

    def note_draft(self, lanes: int, steps: int, ms: float) -> None:
        """Takes the wall time of a draft call for `lanes` lanes whose longest chain has `steps` drafts."""
        ...

    def forget(self, order: int) -> None:
        """A stream has ended."""
        ...
