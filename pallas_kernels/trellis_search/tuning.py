"""Host side: how many rings are searched together, by backend. Read next: op.py."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Blocks:
    """rings: searched at once, in vector lanes. count: blocks that one call to the device may hold."""

    rings: int
    count: int

    def __post_init__(self) -> None:
        if self.rings < 1 or self.count < 1:
            raise ValueError(f"Blocks: {self.rings} rings, {self.count} blocks, wanted at least 1 of each")


CPU = Blocks(rings=16, count=64)
"""Sixteen float32 fill a cache line, and the costs of sixteen rings a core's second cache."""
FEW = Blocks(rings=128, count=4)
MANY = Blocks(rings=1024, count=8)
"""On other devices a step is a launch over the whole block, so a block holds as many rings as there are."""


def blocks_for(backend: str, rings: int) -> Blocks:
    """Blocks for a number of rings on a backend ("cpu", "gpu", ...)."""
    if backend == "cpu":
        return CPU
    return FEW if rings <= FEW.rings * FEW.count else MANY
