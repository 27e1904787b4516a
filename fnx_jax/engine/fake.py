"""Host side: a device that is none. It runs plans on a hash instead of a network, and refuses plans that are wrong.

What a lane has seen is only what its rows, or those of a state that it was given, wrote into its pages.
Read next: fake_pages.py, fake_model.py, fake_checks.py.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fnx_jax.engine.fake_checks import check_plan
from fnx_jax.engine.fake_head import FakeHead, perfect, with_token
from fnx_jax.engine.fake_model import fake_draw, fake_logits, fake_logprobs
from fnx_jax.engine.fake_pages import FakePages, PlanError, Stream, require
from fnx_jax.engine.request import TokenLogprobs
from fnx_jax.engine.steps import (
    DraftOutput,
    DraftPlan,
    DraftRow,
    Draw,
    Held,
    ReuseError,
    RoundOutput,
    RoundPlan,
    Score,
)

__all__ = ["FakeSteps", "Faults", "PlanError", "Script"]

STATE_WORDS = 125
Script = Callable[[Sequence[int]], int | None]
"""Given all tokens of a lane so far, the next one to force, or None to leave it to the hash."""


@dataclass(frozen=True)
class Faults:
    """What goes wrong on purpose.

    fail_rounds, fail_drafts: rounds and draft calls, counted from 0, that raise. nonfinite_tokens: from a row with one
    of them on, nothing in its lane is finite. sleep_s: added to each round. fail_keeps, fail_restores: calls, counted
    from 0, that raise ReuseError; fail_copies: those of copy_page.
    """

    fail_rounds: frozenset[int] = frozenset()
    fail_drafts: frozenset[int] = frozenset()
    nonfinite_tokens: frozenset[int] = frozenset()
    sleep_s: float = 0.0
    fail_keeps: frozenset[int] = frozenset()
    fail_restores: frozenset[int] = frozenset()
    fail_copies: frozenset[int] = frozenset()


class FakeSteps:
    """Steps without a device; limits as in Steps.

    pages: default, enough for every lane's whole context. script: forces tokens. before: called with the number of
    each round; may wait or raise. draft_depth, head: how deep its draft head reaches, and what it proposes.
    rounds, draft_calls, keeps, restores, copies: begun.
    """

    def __init__(
        self,
        *,
        lanes: int = 4,
        row_tile: int = 16,
        max_rows: int = 64,
        context: int = 128,
        page: int = 8,
        pages: int | None = None,
        vocabulary: int = 64,
        history: int = 2,
        slots: int = 0,
        faults: Faults | None = None,
        script: Script | None = None,
        before: Callable[[int], None] | None = None,
        draft_depth: int = 0,
        head: FakeHead = perfect,
    ):
        self.lanes, self.row_tile, self.max_rows, self.context = lanes, row_tile, max_rows, context
        self.page, self.vocabulary, self.history = page, vocabulary, history
        self.pages = lanes * -(-context // page) if pages is None else pages
        self.owner: object = None
        self.slots, self.state_bytes, self.page_bytes = slots, 8 * STATE_WORDS, 32 * page
        self.draft_depth = draft_depth
        self.rounds = self.draft_calls = self.keeps = self.restores = self.copies = 0
        self._faults, self._script, self._before, self._head = faults or Faults(), script, before, head
        self._held = FakePages(self.pages, page)
        self._streams = 0
        self._stream_L = [Stream(-1)] * lanes
        self._kept_L, self._written_L = [0] * lanes, [0] * lanes
        self._slots: dict[int, tuple[Stream, int]] = {}

    def round(self, plan: RoundPlan) -> RoundOutput:
        """Runs one round. Raises PlanError for a wrong plan, RuntimeError where Faults says so."""
        number = self.rounds
        self.rounds += 1
        if self._before is not None:
            self._before(number)
        time.sleep(self._faults.sleep_s)
        if number in self._faults.fail_rounds:
            raise RuntimeError(f"round {number} fails on purpose")
        check_plan(plan, self)
        for row in range(len(plan.token_B)):
            self._write(plan, row)
        results = [self._draw(plan, draw) for draw in plan.draws]
        scores = [self._score(plan, score) for score in plan.scores]
        return RoundOutput(
            tokens=tuple(token for token, _, _ in results),
            finite=tuple(finite for _, finite, _ in results),
            draw_logprobs=tuple(logprobs for _, _, logprobs in results),
            score_logprobs=tuple(logprobs for logprobs, _ in scores),
            score_finite=tuple(finite for _, finite in scores),
        )

    def keep(self, lane: int, length: int, slot: int) -> None:
        """Remembers a lane's stream and its length. Raises PlanError, ReuseError."""
        number, self.keeps = self.keeps, self.keeps + 1
        if number in self._faults.fail_keeps:
            self._slots.clear()
            raise ReuseError(f"keep {number} fails on purpose")
        low, high = self._kept_L[lane], self._written_L[lane]
        require(low <= length <= high and length, f"lane {lane}: {length} rows to keep, it has {low} to {high}")
        require(0 <= slot < self.slots, f"slot {slot} of {self.slots}")
        self._slots[slot] = self._stream_L[lane], length

    def restore(self, slot: int, lane: int) -> None:
        """Starts a new stream behind a kept one. Raises PlanError, ReuseError."""
        number, self.restores = self.restores, self.restores + 1
        if number in self._faults.fail_restores:
            raise ReuseError(f"restore {number} fails on purpose")
        require(slot in self._slots, f"slot {slot} holds nothing")
        self._streams += 1
        parent, length = self._slots[slot]
        self._stream_L[lane] = Stream(self._streams, parent, length)
        self._kept_L[lane] = self._written_L[lane] = length

    def copy_page(self, source: int, target: int) -> None:
        """Copies a page. Raises PlanError, ReuseError."""
        number, self.copies = self.copies, self.copies + 1
        if number in self._faults.fail_copies:
            raise ReuseError(f"copy {number} fails on purpose")
        require(0 <= source < self.pages and 0 <= target < self.pages, f"page {source} to {target} of {self.pages}")
        self._held.copy(source, target)

    def spill(self, slot: int, pages: tuple[int, ...]) -> Held:
        """Returns the length of a slot's stream and its rows in the pages. Raises PlanError."""
        require(slot in self._slots, f"slot {slot} holds nothing")
        stream, length = self._slots[slot]
        state = np.zeros(STATE_WORDS, np.int64)
        state[0] = length
        return state, self._held.take(np.array(pages), stream, length)

    def refill(self, held: Held, slot: int, pages: tuple[int, ...]) -> None:
        """Puts them back, as a stream of their own.

        Raises: PlanError, and ReuseError where Faults says so of the next restore.
        """
        if self.restores in self._faults.fail_restores:
            self._slots.clear()
            raise ReuseError("a refill fails on purpose")
        state, content = held
        self._streams += 1
        self._slots[slot] = Stream(self._streams), int(state[0])
        require(len(content) == len(pages), f"{len(content)} pages were held, {len(pages)} given")
        self._held.put(np.array(pages), Stream(self._streams), content)

    def draft(self, plan: DraftPlan) -> DraftOutput:
        """Drafts as the head's script says. Raises as `round`."""
        number = self.draft_calls
        self.draft_calls += 1
        if number in self._faults.fail_drafts:
            raise RuntimeError(f"draft call {number} fails on purpose")
        require(plan.rows, "no lane drafts")
        require(len({row.lane for row in plan.rows}) == len(plan.rows), "a lane drafts twice")
        chains = [self._chain(plan, number, row) for number, row in enumerate(plan.rows)]
        return DraftOutput(tuple(chains), tuple((0.9,) * len(chain) for chain in chains))

    def _chain(self, plan: DraftPlan, number: int, row: DraftRow) -> tuple[int, ...]:
        lane, draw = row.lane, row.draw
        kept, written = self._kept_L[lane], self._written_L[lane]
        require(kept <= row.position + 1 <= written, f"lane {lane}: drafts from {row.position}, {kept} rows are kept")
        require((draw.row, draw.position) == (number, row.position + 2), f"lane {lane}: draws {draw.position}")
        require(1 <= row.depth <= self.draft_depth, f"lane {lane}: {row.depth} drafts")
        last = (row.position + row.depth - 1) // self.page
        require((plan.pages_LP[lane, : last + 1] >= 0).all(), f"lane {lane}: no page for the chain")
        tokens, truth = [*self._read(plan, lane, 0, row.position + 1), row.token], []
        for step in range(row.depth):
            forced = self._script(tokens) if self._script is not None else None
            token = fake_draw(
                fake_logits(tokens, self.vocabulary, forced), replace(draw, position=draw.position + step)
            )
            if token is None or not self._faults.nonfinite_tokens.isdisjoint(tokens):
                break
            truth.append(token)
            tokens.append(token)
            draw = with_token(draw, token)
        return tuple(self._head(tuple(truth), self.vocabulary))

    def _write(self, plan: RoundPlan, row: int) -> None:
        lane, position, token = int(plan.lane_B[row]), int(plan.position_B[row]), int(plan.token_B[row])
        first = row == 0 or plan.lane_B[row - 1] != lane
        if position == 0:
            self._streams += 1
            self._stream_L[lane], self._kept_L[lane], self._written_L[lane] = Stream(self._streams), 0, 0
        low = self._kept_L[lane] if first else self._written_L[lane]
        require(low <= position <= self._written_L[lane], f"lane {lane}: position {position}, wanted {low}")
        require(position < self.context and 0 <= token < self.vocabulary, f"lane {lane}: {token} at {position}")
        self._held.write(plan.pages_LP[lane], self._stream_L[lane], position, token)
        self._written_L[lane] = position + 1
        if not plan.speculative_B[row]:
            self._kept_L[lane] = position + 1
        before = self._read(plan, lane, max(0, position - self.history), position)[::-1]
        wanted = before + [-1] * (self.history - len(before))
        require(plan.history_BN[row].tolist() == wanted, f"row {row}: history {plan.history_BN[row]}, wanted {wanted}")

    def _read(self, plan: RoundPlan | DraftPlan, lane: int, begin: int, end: int) -> list[int]:
        """The lane's tokens at positions begin to end - 1, as its pages hold them."""
        return self._held.read(plan.pages_LP[lane], self._stream_L[lane], begin, end)

    def _logits(self, plan: RoundPlan, row: int) -> tuple[np.ndarray, bool]:
        tokens = self._read(plan, int(plan.lane_B[row]), 0, int(plan.position_B[row]) + 1)
        forced = self._script(tokens) if self._script is not None else None
        return fake_logits(tokens, self.vocabulary, forced), self._faults.nonfinite_tokens.isdisjoint(tokens)

    def _draw(self, plan: RoundPlan, draw: Draw) -> tuple[int, bool, TokenLogprobs | None]:
        logits_V, finite = self._logits(plan, draw.row)
        token = fake_draw(logits_V, draw)
        if token is None or not finite:
            return 0, False, None if draw.logprobs is None else TokenLogprobs(0, float("nan"))
        return token, True, None if draw.logprobs is None else fake_logprobs(logits_V, token, draw.logprobs)

    def _score(self, plan: RoundPlan, score: Score) -> tuple[TokenLogprobs, bool]:
        logits_V, finite = self._logits(plan, score.row)
        return fake_logprobs(logits_V, score.target, score.top), finite
