"""Host side: the heads of the real model that turn, by name, and small ones for tests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """heads of `size` dimensions, of which the first `rotary` turn."""

    heads: int
    size: int
    rotary: int
    theta: float = 1e7


SHAPES = {
    "queries": Shape(24, 256, 64),
    "keys": Shape(2, 256, 64),
    "index_queries": Shape(4, 128, 64),
    "index_key": Shape(1, 128, 64),
}

SMALL_SHAPES = {"part": Shape(3, 16, 4), "whole": Shape(2, 8, 8)}
