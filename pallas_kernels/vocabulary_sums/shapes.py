"""Host side: the shapes that vocabulary sums are taken in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """rows: rows of a call. vocabulary: logits a row."""

    rows: int
    vocabulary: int


SHAPES = {
    "tile": Shape(rows=16, vocabulary=248320),
    "small": Shape(rows=3, vocabulary=320),
    "one_block": Shape(rows=2, vocabulary=100),
}
