"""Host side: what a round held, kept for tests and metrics. Read next: loop.py."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fnx_jax.engine.plan import Segment
from fnx_jax.engine.request import Emission

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaneRows:
    """One lane's rows: of its prompt, of its pending token, of drafts under test."""

    lane: int
    request_id: str
    prompt: int = 0
    decode: int = 0
    verify: int = 0

    @property
    def rows(self) -> int:
        """All of them."""
        return self.prompt + self.decode + self.verify


@dataclass(frozen=True)
class TileRecord:
    """The rows of one tile, lane by lane."""

    lanes: tuple[LaneRows, ...]

    @property
    def shared(self) -> bool:
        """Whether rows of two or more lanes are in it."""
        return len(self.lanes) > 1

    @property
    def mixed(self) -> bool:
        """Whether prompt rows and rows of replies are in it."""
        return any(rows.prompt for rows in self.lanes) and any(rows.decode + rows.verify for rows in self.lanes)


@dataclass(frozen=True)
class RoundRecord:
    """One round. lanes: its rows, whole. tiles: the same by tile. seconds: wall time from its plan to its results.

    committed: per request that gained some, the reply tokens of this round.
    """

    number: int
    lanes: tuple[LaneRows, ...]
    tiles: tuple[TileRecord, ...]
    committed: tuple[tuple[str, tuple[int, ...]], ...]
    seconds: float

    @property
    def rows(self) -> int:
        """Rows of the round, padding not counted."""
        return sum(lane.rows for lane in self.lanes)


class RoundLog:
    """The newest records, at most `keep`; each is also given to `on_record`, whose errors are logged and dropped."""

    def __init__(self, keep: int, on_record: Callable[[RoundRecord], None] | None = None):
        self._records: deque[RoundRecord] = deque(maxlen=keep)
        self._on_record = on_record

    def append(self, record: RoundRecord) -> None:
        """Adds a record."""
        self._records.append(record)
        if self._on_record is not None:
            try:
                self._on_record(record)
            except Exception:
                logger.exception("a reader of round records failed")

    def __iter__(self) -> Iterator[RoundRecord]:
        return iter(tuple(self._records))


def record_round(
    number: int, segments: Sequence[Segment], emissions: Sequence[Emission], row_tile: int, seconds: float
) -> RoundRecord:
    """Describes a concluded round."""
    lanes, tiles, first = [], [], 0
    for segment in segments:
        end = first + len(segment.tokens)
        lanes.append(_lane_rows(segment, 0, len(segment.tokens)))
        for tile in range(first // row_tile, (end - 1) // row_tile + 1):
            if tile == len(tiles):
                tiles.append([])
            begin = max(first, tile * row_tile) - first
            tiles[tile].append(_lane_rows(segment, begin, min(end, (tile + 1) * row_tile) - first))
        first = end
    committed = tuple((emission.request_id, emission.tokens) for emission in emissions if emission.tokens)
    return RoundRecord(number, tuple(lanes), tuple(TileRecord(tuple(tile)) for tile in tiles), committed, seconds)


def _lane_rows(segment: Segment, begin: int, end: int) -> LaneRows:
    lane, rows = segment.lane, end - begin
    if segment.prompt:
        return LaneRows(lane.index, lane.request.id, prompt=rows)
    # A window is whole in one tile.
    return LaneRows(lane.index, lane.request.id, decode=rows - segment.drafts, verify=segment.drafts)
