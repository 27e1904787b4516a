"""Host side: one lane's request on its way from prompt to reply. Read next: plan.py, conclude.py."""

from collections.abc import Sequence
from dataclasses import dataclass

from fnx_jax.engine.draws import DrawArrays
from fnx_jax.engine.ending import End, ending
from fnx_jax.engine.prompt_cache.entries import Kind
from fnx_jax.engine.request import Request, Timing, TokenLogprobs
from fnx_jax.engine.steps import Draw


@dataclass(frozen=True)
class Waiting:
    """A request that has no lane yet, and when it came, in seconds of the engine's clock."""

    request: Request
    submitted_s: float


class Lane:
    """What the host knows of one admitted request.

    index: the lane's number. order: how many requests were admitted before. pages: the cache pages it holds.
    limit: reply tokens at most. tokens: prompt, then reply. filled: positions whose rows are in the cache and kept;
    cached: those that were there before the first round.
    marks: prompt rows after which the state is to be kept, so that a round has to end there, or just behind the last.
    held, chances: drafts for the tokens after the pending one, and the draft head's probability of each.
    passed: rounds since the prompt last got a row. scores: the prompt's log-probabilities so far.
    """

    def __init__(
        self,
        index: int,
        order: int,
        waiting: Waiting,
        pages: tuple[int, ...],
        limit: int,
        vocabulary: int,
        now_s: float,
    ):
        self.index, self.order, self.pages, self.limit = index, order, pages, limit
        self.request = waiting.request
        self.tokens = [int(token) for token in waiting.request.prompt]
        self.prompt_length = len(self.tokens)
        self.filled = self.cached = 0
        self.marks: dict[int, Kind] = {}
        self.held: tuple[int, ...] = ()
        self.chances: tuple[float, ...] = ()
        self.passed = 0
        self.scores: list[TokenLogprobs] = []
        self._open = self.request.budget is not None
        self._arrays = DrawArrays(self.request, vocabulary)
        self._submitted_s, self._admitted_s, self._prompt_done_s = waiting.submitted_s, now_s, None

    @property
    def filling(self) -> bool:
        """Whether prompt rows remain."""
        return self.filled < self.prompt_length

    def prompt_end(self, rows: int, passed: int = 0) -> int:
        """Returns where a piece of at most `rows` prompt rows ends: at the next mark, if that comes first.

        passed: a mark at which it need not end.
        """
        end = min(self.prompt_length, self.filled + rows)
        return min((mark for mark in self.marks if self.filled < mark < end and mark != passed), default=end)

    @property
    def pending(self) -> tuple[int, ...]:
        """Tokens that are not in the cache yet: the newest, and what was dictated before it."""
        return tuple(self.tokens[self.filled :])

    @property
    def dictated(self) -> tuple[int, ...]:
        """What the reply goes on with, whatever is drawn; nearly always nothing."""
        budget = self.request.budget
        return budget.closing if budget is not None and self._open and self.replied >= budget.tokens else ()

    @property
    def replied(self) -> int:
        """Reply tokens committed."""
        return len(self.tokens) - self.prompt_length

    @property
    def room(self) -> int:
        """Reply tokens that it may still commit."""
        return self.limit - self.replied

    def hold(self, drafts: tuple[int, ...], chances: tuple[float, ...]) -> None:
        """Replaces the drafts."""
        self.held, self.chances = drafts, chances

    def draw(self, row: int, ahead: Sequence[int] = ()) -> Draw:
        """Describes the draw of the token that follows those committed and the drafts `ahead`."""
        return self._arrays.draw(row, len(self.tokens) + len(ahead), self.replied + len(ahead), ahead)

    def prompt_done(self, now_s: float) -> None:
        """Notes when the last prompt row ran."""
        self._prompt_done_s = now_s

    def commit(self, token: int) -> End | None:
        """Adds a reply token; says whether the reply ends with it. The watcher sees every token once, in order.

        Drafts that begin with it go on from there, all others are dropped.
        """
        self.tokens.append(token)
        told = self.held[:1] == (token,)
        self.held, self.chances = (self.held[1:], self.chances[1:]) if told else ((), ())
        self._arrays.commit(token)
        if self.request.budget is not None:
            self._open = self._open and token != self.request.budget.close
        matched = None
        if self.request.watcher is not None:
            try:
                matched = self.request.watcher.push(token)
            except Exception as error:  # the caller's code: it may end its own request only
                return End("error", error=f"stop watcher failed: {type(error).__name__}: {error}")
        return ending(self.request.sampling, token, self.replied, self.limit, matched)

    def timing(self, now_s: float) -> Timing:
        """Returns how the seconds until now were spent."""
        queue_s = self._admitted_s - self._submitted_s
        if self._prompt_done_s is None:
            return Timing(queue_s, now_s - self._admitted_s)
        return Timing(queue_s, self._prompt_done_s - self._admitted_s, now_s - self._prompt_done_s)
