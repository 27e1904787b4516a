"""Host side: what is varied around a request without being allowed to change it. A cell is one setting of all of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

Value = str | int


@dataclass(frozen=True, order=True)
class Cell:
    """One setting; the defaults are those of the reference, which every cell is compared with.

    drafts: "off"; "proposed", right and wrong tokens put forward by this program; "head", by the model's draft head.
    start: "fresh", every prompt from row 0; "resumed" from kept prompts. streams: requests that run together.
    sampling: a name of streams.SAMPLINGS. chunk: prompt rows of a round at most.
    prefill: "tiles", or "deep", layer by layer over a whole segment.
    tp: devices. place: experts "resident" on the device, or "offloaded".
    """

    drafts: str = "off"
    start: str = "fresh"
    streams: int = 1
    sampling: str = "greedy"
    chunk: int = 1
    prefill: str = "tiles"
    tp: int = 1
    place: str = "resident"

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())

    def reference(self) -> "Cell":
        """The cell it is compared with: alone, fresh, plain, row by row, on one device; the sampling stays."""
        return Cell(sampling=self.sampling)


AXES: Mapping[str, tuple[Value, ...]] = {
    "drafts": ("off", "proposed", "head"),
    "start": ("fresh", "resumed"),
    "streams": (1, 2, 4),
    "sampling": ("greedy", "seeded", "unfiltered", "penalised"),
    "chunk": (1, 5, 17, 512),
    "prefill": ("tiles", "deep"),
    "tp": (1, 2, 4),
    "place": ("resident", "offloaded"),
}
"""Every value of every field of a cell."""


def make_cell(values: Mapping[str, Value]) -> Cell:
    """A cell from one value an axis. Raises TypeError where an axis is unknown."""
    return Cell(**values)  # pyright: ignore[reportArgumentType]
