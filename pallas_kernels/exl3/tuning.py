"""Host side: block sizes of the kernel, by device kind and layer shape. Read next: kernel.py."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import jax

from pallas_kernels.exl3.shapes import SHAPES
from pallas_kernels.exl3.weight import Exl3Weight


@dataclass(frozen=True)
class Blocks:
    """How the kernel cuts its work. No choice changes a device's bits: the order of the sums is not among them.

    block_n: outputs of a program: 16, 32, 64 or 128. sub_tiles: most 16-row tiles that share a decoded block.
    num_warps, num_stages: for the Triton compiler.
    """

    block_n: int = 64
    sub_tiles: int = 4
    num_warps: int = 4
    num_stages: int = 4

    def __post_init__(self) -> None:
        if self.block_n not in (16, 32, 64, 128):
            raise ValueError(f"Blocks: block_n {self.block_n}, wanted 16, 32, 64 or 128")
        if self.sub_tiles < 1:
            raise ValueError(f"Blocks: sub_tiles {self.sub_tiles}, wanted at least 1")


DEFAULT = Blocks()
NARROW = Blocks(block_n=32)
"""For layers of few outputs, which would leave most of a GPU idle with wider blocks."""
NARROW_OUTPUTS = 1024

TUNED: Mapping[tuple[str, str], Blocks] = MappingProxyType({})
"""(device kind, shape name) -> blocks, from measurements on that device."""


def blocks_for(weight: Exl3Weight) -> Blocks:
    """The blocks of a layer on the current device: TUNED where it is listed, else NARROW or DEFAULT by outputs."""
    kind = jax.devices()[0].device_kind
    for shape in SHAPES:
        if (shape.in_features, shape.out_features) == (weight.in_features, weight.out_features):
            if (kind, shape.name) in TUNED:
                return TUNED[kind, shape.name]
    return NARROW if weight.out_features <= NARROW_OUTPUTS else DEFAULT
