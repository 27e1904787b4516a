"""Host side: the residual streams of the real model, by name, and small ones for tests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """streams side by side, each `hidden` wide; rank of their mix."""

    streams: int
    hidden: int
    rank: int


SHAPES = {"layer": Shape(streams=4, hidden=2560, rank=320)}

SMALL_SHAPES = {"small": Shape(streams=4, hidden=48, rank=16)}
