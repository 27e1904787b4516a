"""Host side: the n-gram embedding of the real model, by name, and small ones for tests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """streams, hidden: of the residual. embedding: width of all hash heads. taps, dilation: of the convolution."""

    streams: int
    hidden: int
    embedding: int
    taps: int = 4
    dilation: int = 3


SHAPES = {"layer": Shape(streams=4, hidden=2560, embedding=2560)}

SMALL_SHAPES = {"small": Shape(streams=4, hidden=16, embedding=24)}
