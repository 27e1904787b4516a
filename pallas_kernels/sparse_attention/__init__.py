"""Sparse attention over paged caches: block keys, block scores, selection, attention over what was kept."""

from pallas_kernels.sparse_attention.attend import attend
from pallas_kernels.sparse_attention.blocks import block_means, block_scores, keep_blocks
from pallas_kernels.sparse_attention.pages import PageTable, pool_dtype, write_blocks, write_rows

__all__ = [
    "PageTable",
    "attend",
    "block_means",
    "block_scores",
    "keep_blocks",
    "pool_dtype",
    "write_blocks",
    "write_rows",
]
