"""Host side: a tensor of a store in pieces along its first axis: memory does not grow with it. Next: store.py."""

from collections.abc import Iterator
from math import prod

import numpy as np

from checkpoints.headers import DTYPES, TensorInfo
from checkpoints.store import Store

CHUNK_BYTES = 64 << 20


def read_chunks(store: Store, info: TensorInfo, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, np.ndarray]]:
    """Yields pieces of about `chunk_bytes`, each with the number of its first entry; a small tensor comes whole."""
    if not info.shape or info.nbytes <= chunk_bytes:
        yield 0, store.read(info.name)
        return
    entry_bytes = prod(info.shape[1:]) * DTYPES[info.dtype].itemsize
    step = max(1, chunk_bytes // entry_bytes)
    for first in range(0, info.shape[0], step):
        yield first, store.read_slice(info.name, first, min(first + step, info.shape[0]))
