"""Host side: the routers of the real model, by name, and small ones for tests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """hidden: width of a row. experts: to choose from. active: chosen."""

    hidden: int
    experts: int
    active: int


SHAPES = {"layer": Shape(hidden=2560, experts=512, active=10)}

SMALL_SHAPES = {"small": Shape(hidden=32, experts=24, active=4)}
