"""Host side: checks of a checkpoint's values, reading every byte once, in bounded memory. Read next: verify.py.

Headers say nothing about a damaged shard or a conversion that shifted the norms; these do.
"""

from collections.abc import Callable

import numpy as np

from checkpoints.chunks import CHUNK_BYTES, read_chunks
from checkpoints.errors import CheckpointError
from checkpoints.exl3 import MARKERS
from checkpoints.headers import TensorInfo
from checkpoints.inventory import Inventory
from checkpoints.ngram import open_ngram_table
from checkpoints.norms import check_norms
from checkpoints.store import Store

_EXPONENT = {"F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80), "F32": (np.uint32, 0x7F800000)}


def check_values(store: Store, inventory: Inventory, advance: Callable[[int], None] = lambda nbytes: None) -> None:
    """Reads everything, then checks norms and hash constants.

    Args:
      advance: told of every read, in bytes; the sum is that of all tensors.
    Raises: CheckpointError, naming the tensor, where a read fails, a float is not finite, a marker holds another value,
      norms seem to be shifted, or hash constants are not the config's.
    """
    for info in sorted((store.info(name) for name in store.names()), key=lambda info: (info.file.name, info.start)):
        check_tensor(store, info, advance)
    check_norms(store)
    check_tables(store, inventory)


def check_tensor(store: Store, info: TensorInfo, advance: Callable[[int], None]) -> None:
    """Reads one tensor in chunks; floats must be finite, also the row scales of an n-gram table, markers known."""
    ending = info.name.rpartition(".")[2]
    for first, chunk in read_chunks(store, info, CHUNK_BYTES):
        advance(chunk.nbytes)
        if info.dtype == "I16" and ending == "trellis" and len(info.shape) == 2:
            finite = _all_finite(np.ascontiguousarray(chunk[:, 0]), "F16")
        else:
            finite = info.dtype not in _EXPONENT or _all_finite(chunk, info.dtype)
        if not finite:
            raise CheckpointError(f"{info.where}: not finite in the entries from {first} on")
        if ending in MARKERS and (value := int(chunk) & 0xFFFFFFFF) != MARKERS[ending]:
            raise CheckpointError(f"{info.where}: 0x{value:08X} is no known multiplier, not 0x{MARKERS[ending]:08X}")


def check_tables(store: Store, inventory: Inventory) -> None:
    """Holds the hash constants of every n-gram table against the config; raises CheckpointError."""
    for table in inventory.tables:
        open_ngram_table(store, table.prefix)


def _all_finite(values: np.ndarray, code: str) -> bool:
    """By the bits: an exponent of all ones is an infinity or no number; no cast, so no memory for one."""
    word, exponent = _EXPONENT[code]
    bits = values.reshape(-1).view(word)
    return not bool(np.any(np.bitwise_and(bits, word(exponent)) == word(exponent)))
