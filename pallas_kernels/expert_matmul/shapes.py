"""Host side: the routed experts of the real model, by name, and small ones for tests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """rows: of a call. experts, active: of a layer, of a row. hidden, ffn: widths outside and inside an expert."""

    rows: int
    experts: int
    active: int
    hidden: int
    ffn: int


SHAPES = {
    "tile": Shape(rows=16, experts=512, active=10, hidden=2560, ffn=640),
    "segment": Shape(rows=512, experts=512, active=10, hidden=2560, ffn=640),
}

SMALL_SHAPES = {"small": Shape(rows=16, experts=6, active=2, hidden=256, ffn=128)}
