"""Host side: the plain weights of the real model, by name, and small ones for tests. EXL3 layers: exl3/shapes.py."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """in_features, out_features: of one weight, stored [out, in]."""

    in_features: int
    out_features: int


SHAPES = {
    "router": Shape(2560, 512),
    "delta_gates": Shape(2560, 48),
    "shared_gate": Shape(2560, 1),
    "stream_down": Shape(10240, 320),
    "stream_up": Shape(320, 10240),
    "stream_inject": Shape(10240, 4),
    "ngram_key": Shape(2560, 10240),
    "ngram_value": Shape(2560, 2560),
}

SMALL_SHAPES = {
    "wide": Shape(64, 512),
    "square": Shape(256, 384),
    "tall": Shape(640, 48),
    "one_output": Shape(640, 1),
}
