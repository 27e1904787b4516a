"""Host side: the contract between the round loop and the device. NumPy in, NumPy out.

A round is: rows of any lanes (prompt rows, pending tokens, later drafts under test) go through one forward pass;
some rows are drawn, some are scored; the host concludes. After it the draft head may propose what comes next, one call
for all lanes. `lanes.rounds.DeviceSteps` runs it on devices, `engine.fake.FakeSteps` with no device at all.
Read next: scheduler.py.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fnx_jax.engine.request import TokenLogprobs


@dataclass(frozen=True)
class Draw:
    """A row whose next token is drawn.

    row: index into the plan's rows. position: absolute position of the token drawn, the noise key with seed and
    choice. counts_V: int32, how often the reply holds each id; seen_V: bool, ids in prompt or reply; both None
    without penalties. bias_V: float32 added to the logits, -inf forbids; None for no bias. logprobs: as in
    SamplingParams.
    """

    row: int
    position: int
    seed: int
    choice: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    counts_V: np.ndarray | None = None
    seen_V: np.ndarray | None = None
    bias_V: np.ndarray | None = None
    logprobs: int | None = None


@dataclass(frozen=True)
class Score:
    """A row whose raw log-probability of a given next token is reported, with the `top` likeliest ids."""

    row: int
    target: int
    top: int = 0


@dataclass(frozen=True)
class RoundPlan:
    """The rows of one round; rows of one lane are contiguous and in ascending position.

    token_B, lane_B, position_B: int32. speculative_B: bool, True for drafts under test, False for rows that are
    kept whatever is drawn; a prompt's last row may be told as a draft, so that the state before it can be kept.
    history_BN: int32, the N tokens before each row, newest first, -1 before the start.
    pages_LP: int32 page table, -1 where a lane has no page. draws, scores: at most one of each per row.
    Every array is the receiver's: nobody writes it again.
    A row at position 0 starts a new stream in its lane: what the lane held before is forgotten. A lane's first row in
    a round says how far its earlier rows are kept: a speculative row at or past that position was rejected.
    A lane's speculative rows come last, and lie in one tile with the row before them: fewer than `row_tile` rows.
    """

    token_B: np.ndarray
    lane_B: np.ndarray
    position_B: np.ndarray
    speculative_B: np.ndarray
    history_BN: np.ndarray
    pages_LP: np.ndarray
    draws: tuple[Draw, ...] = ()
    scores: tuple[Score, ...] = ()


@dataclass(frozen=True)
class RoundOutput:
    """Results in the order of the plan's draws and scores.

    tokens: drawn ids. finite: False where the row's logits held a NaN or an infinity, or left nothing to draw (its
    token means nothing). draw_logprobs: None where not asked for. score_logprobs, score_finite: the same for scores.
    The first three have one entry a draw, the last two one a score.
    """

    tokens: tuple[int, ...] = ()
    finite: tuple[bool, ...] = ()
    draw_logprobs: tuple[TokenLogprobs | None, ...] = ()
    score_logprobs: tuple[TokenLogprobs, ...] = ()
    score_finite: tuple[bool, ...] = field(default=())


@dataclass(frozen=True)
class DraftRow:
    """A lane that wants drafts.

    position: of its newest kept row. token: the one after it, pending. draw: of the first draft; its row is this row's
    index in the plan, its position is `position` + 2. depth: drafts wanted at most.
    """

    lane: int
    position: int
    token: int
    draw: Draw
    depth: int


@dataclass(frozen=True)
class DraftPlan:
    """The drafts wanted after a round, at most one chain a lane.

    pages_LP: as in RoundPlan. confidence: a chain's second draft and later ones are dropped once the product of its
    chances falls below this; 0 keeps all.
    """

    rows: tuple[DraftRow, ...]
    pages_LP: np.ndarray
    confidence: float = 0.0


@dataclass(frozen=True)
class DraftOutput:
    """Per row of the plan, the tokens drafted, and the head's probability of each at temperature 1."""

    tokens: tuple[tuple[int, ...], ...] = ()
    chances: tuple[tuple[float, ...], ...] = ()


Held = tuple[np.ndarray, ...]
"""A kept state and its pages off the devices, and all there is to know of them: nothing else is needed to put them back
into steps that were made alike, in this process or another."""


class ReuseError(RuntimeError):
    """A lane's state could not be kept or restored; the lanes are as they were."""


class Steps(Protocol):
    """What the loop needs from a device, real or fake.

    lanes, row_tile, max_rows: lanes; rows of a tile; rows of one round at most (a multiple of row_tile).
    context: positions a lane may hold. page, pages: positions of a page; pages in the pool.
    vocabulary: ids; history: previous tokens a row needs.
    draft_depth: drafts of a chain at most, below row_tile; 0 where there is no draft head.
    slots: kept states there is room for beside their pages, 0 for none. state_bytes, page_bytes: of a kept state
    without its pages and of a page, on all devices. owner: whoever wrote its pages and slots last; what another one
    kept there is gone. Whoever begins to use them puts itself there.
    """

    lanes: int
    row_tile: int
    max_rows: int
    context: int
    page: int
    pages: int
    vocabulary: int
    history: int
    draft_depth: int
    slots: int
    state_bytes: int
    page_bytes: int
    owner: object

    def round(self, plan: RoundPlan) -> RoundOutput:
        """Runs one round and waits for it."""
        ...

    def draft(self, plan: DraftPlan) -> DraftOutput:
        """Drafts for lanes whose kept rows have run, and waits for it. No round's results depend on it.

        One that raises has lost its drafts, and no more.
        """
        ...

    def keep(self, lane: int, length: int, slot: int) -> None:
        """Copies a lane's state after its first `length` rows into a slot, without waiting; not its pages.

        length: rows that are kept, from the first row that was certain in the lane's last round on.
        Raises: ReuseError; every slot's content is lost then.
        """
        ...

    def restore(self, slot: int, lane: int) -> None:
        """Gives a lane the state in a slot, without waiting: its next row is the one after those.

        Raises: ReuseError.
        """
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copies all that a page holds into another one, without waiting. Raises: ReuseError."""
        ...

    def spill(self, slot: int, pages: tuple[int, ...]) -> Held:
        """Copies a kept state and its pages to the host's memory, and waits. Raises: ReuseError."""
        ...

    def refill(self, held: Held, slot: int, pages: tuple[int, ...]) -> None:
        """Copies what `spill` returned into a slot and into as many pages, without waiting.

        Raises: ReuseError; every slot's content is lost then.
        """
        ...
