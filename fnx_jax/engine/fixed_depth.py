"""Host side: a drafter that learns nothing: every lane drafts equally deep each round. For the self-test and proofs."""

from collections.abc import Sequence

from fnx_jax.engine.drafting.streams import Outcome, Stream, Window


class FixedDepth:
    """A Drafter (see drafting.streams). depth: drafts a lane makes and tests, fewer where there is no room.

    confidence: see DraftPlan.
    """

    def __init__(self, depth: int, confidence: float = 0.0):
        self._depth, self.confidence = depth, confidence

    def windows(self, streams: Sequence[Stream], rows: int, row_tile: int) -> list[Window]:
        """What is held or forced, as much as fits."""
        windows, used = [], 0
        for after, stream in zip(reversed(range(len(streams))), streams, strict=True):
            room = min(row_tile - used % row_tile, rows - used - after, stream.room) - 1
            held = stream.held if stream.drafts else ()
            window = Window(stream.order, "head" if held else "plain", held, min(room, len(held)), stream.chances)
            if stream.forced:
                window = Window(stream.order, "forced", stream.forced, min(room, len(stream.forced)))
            windows.append(window)
            used += 1 + window.tested
        return windows

    def note_round(self, outcomes: Sequence[Outcome], ms: float, prompt_rows: int = 0) -> None:
        """Nothing is learnt."""

    def depths(self, streams: Sequence[Stream]) -> tuple[int, ...]:
        """The same for all that may."""
        return tuple(self._depth if stream.drafts else 0 for stream in streams)

    def note_draft(self, lanes: int, steps: int, ms: float) -> None:
        """Nothing is learnt."""

    def forget(self, order: int) -> None:
        """Nothing was kept."""
