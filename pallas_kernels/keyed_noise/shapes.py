"""Host side: the shapes that noise is made in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """rows: rows drawn together. ids: noise values a row."""

    rows: int
    ids: int


SHAPES = {
    "candidates": Shape(rows=16, ids=1024),
    "vocabulary": Shape(rows=16, ids=248320),
    "one_row": Shape(rows=1, ids=320),
}
