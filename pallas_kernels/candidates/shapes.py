"""Host side: the shapes that candidates are chosen in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """rows: rows of a call. vocabulary: entries a row. count: entries chosen."""

    rows: int
    vocabulary: int
    count: int


SHAPES = {
    "draw": Shape(rows=16, vocabulary=248320, count=1024),
    "draft": Shape(rows=16, vocabulary=79616, count=1024),
    "logprobs": Shape(rows=16, vocabulary=248320, count=20),
    "small": Shape(rows=3, vocabulary=320, count=20),
}
