"""Host side: the attention layers of the real model, by name, and small ones for tests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """heads read kv_heads, of `size` dimensions; block: tokens of a block; kept: blocks a row may keep.

    index_heads of index_size score blocks. page: positions a page holds. pages: of a lane.
    """

    heads: int
    kv_heads: int
    size: int
    index_heads: int
    index_size: int
    block: int
    kept: int
    page: int
    pages: int


SHAPES = {
    "context_8k": Shape(24, 2, 256, 4, 128, block=4, kept=512, page=64, pages=128),
    "context_256k": Shape(24, 2, 256, 4, 128, block=4, kept=512, page=64, pages=4096),
}

SMALL_SHAPES = {"small": Shape(6, 2, 16, 3, 16, block=4, kept=20, page=8, pages=24)}
