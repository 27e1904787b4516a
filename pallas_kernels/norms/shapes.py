"""Host side: what the real model norms, by name, and small ones for tests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """groups of a row that are normed each by itself, and their width."""

    groups: int
    width: int


SHAPES = {
    "streams": Shape(4, 2560),
    "all_streams": Shape(1, 10240),
    "embedding": Shape(1, 2560),
    "query_heads": Shape(24, 256),
    "index_heads": Shape(4, 128),
    "delta_keys": Shape(16, 128),
    "delta_heads": Shape(48, 128),
}

SMALL_SHAPES = {"odd": Shape(3, 5), "short": Shape(2, 64), "long": Shape(1, 640)}
