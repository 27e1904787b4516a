"""Host side: the shapes that masses are summed in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """rows: rows of a call. masses: masses a row."""

    rows: int
    masses: int


SHAPES = {
    "vocabulary": Shape(rows=16, masses=248320),
    "candidates": Shape(rows=16, masses=1024),
    "fullest": Shape(rows=1, masses=1 << 18),
}
