"""Host side: numbers about the engine, for metrics and health. Read next: loop.py."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from fnx_jax.engine.prompt_cache.status import CacheStatus
from fnx_jax.engine.request import Emission, FinishReason


@dataclass(frozen=True)
class EngineStatus:
    """The engine at one moment.

    lanes: lanes there are; running: those decoding a reply; filling: those with prompt rows left.
    waiting: requests without a lane. pages: of the cache; pages_used: those that lanes hold.
    prompt_tokens: prompt rows run; generation_tokens: reply tokens committed; rounds, rows: run, padding not counted.
    finished: requests ended, by reason; every reason is present.
    draft_windows: windows that tested drafts. drafted, accepted: how many first drafts, second drafts and so on were
    tested, and how many of them became tokens.
    cache: kept states. closed: new requests are refused. failed: what ended the engine, None while it works.
    """

    lanes: int
    running: int
    filling: int
    waiting: int
    pages: int
    pages_used: int
    prompt_tokens: int
    generation_tokens: int
    rounds: int
    rows: int
    finished: Mapping[str, int]
    draft_windows: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    cache: CacheStatus = CacheStatus()
    closed: bool = False
    failed: str | None = None


@dataclass
class Totals:
    """What only ever grows; written by the thread that runs rounds. Fields as in EngineStatus."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    rounds: int = 0
    rows: int = 0
    draft_windows: int = 0
    drafted: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(get_args(FinishReason), 0)))

    def note_round(self, rows: int, prompt_rows: int, emissions: Iterable[Emission]) -> None:
        """Counts a round: its rows, those of prompts among them, and what its replies gained."""
        self.rounds += 1
        self.rows += rows
        self.prompt_tokens += prompt_rows
        for emission in emissions:
            self.generation_tokens += len(emission.tokens)
            self.note_drafts(emission.drafted, emission.accepted)
            if emission.finish:
                self.finished[emission.finish.reason] += 1

    def note_drafts(self, drafted: int, accepted: int) -> None:
        """Counts a window's drafts by their place in it."""
        self.draft_windows += drafted > 0
        self.drafted.update(range(drafted))
        self.accepted.update(range(accepted))

    def told(self) -> dict[str, Any]:
        """Its part of an EngineStatus."""
        counts = {name: getattr(self, name) for name in ("prompt_tokens", "generation_tokens", "rounds", "rows")}
        places = {"drafted": self.by_place(self.drafted), "accepted": self.by_place(self.accepted)}
        return counts | places | {"finished": dict(self.finished), "draft_windows": self.draft_windows}

    def by_place(self, counts: Counter[int]) -> tuple[int, ...]:
        """Counts of first drafts, second drafts and so on, as deep as any window was."""
        return tuple(counts[place] for place in range(max(self.drafted, default=-1) + 1))
