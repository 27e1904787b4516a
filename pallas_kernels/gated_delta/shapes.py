"""Host side: the recurrent layers of the real model, by name, and small ones for tests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """lanes: states held. The rest: heads and their sizes, and the taps of the convolution."""

    lanes: int
    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    taps: int = 4

    @property
    def channels(self) -> int:
        """Queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_size + self.value_heads * self.value_size


SHAPES = {
    "one_lane": Shape(lanes=1, key_heads=16, value_heads=48, key_size=128, value_size=128),
    "eight_lanes": Shape(lanes=8, key_heads=16, value_heads=48, key_size=128, value_size=128),
}

SMALL_SHAPES = {"small": Shape(lanes=3, key_heads=2, value_heads=6, key_size=16, value_size=8)}
