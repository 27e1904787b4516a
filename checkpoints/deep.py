"""Host side: checks of a checkpoint's values, reading every byte once, in bounded memory. Read next: verify.py.

Headers say nothing about a damaged shard or a conversion that shifted the norms; these do.
"""

import re
from collections import defaultdict
from collections.abc import Callable

import numpy as np

from checkpoints.chunks import CHUNK_BYTES, read_chunks
from checkpoints.errors import CheckpointError
from checkpoints.exl3 import MARKERS
from checkpoints.headers import TensorInfo
from checkpoints.inventory import Inventory
from checkpoints.ngram import open_ngram_table
from checkpoints.store import Store

MEAN_LIMIT = 0.5
"""A family of norms whose weights are used as 1 + w has its mean below this; one that was shifted has it near 1."""

_EXPONENT = {"F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80), "F32": (np.uint32, 0x7F800000)}
_CENTRED = re.compile(r"(hc_norm|q_norm|k_norm|q_layernorm|k_layernorm|norm_(key|query|conv)|pre_fc_norm_\w+)\.weight$")
_NUMBER = re.compile(r"\.\d+(?=\.)")


def check_values(store: Store, inventory: Inventory, advance: Callable[[int], None] = lambda nbytes: None) -> None:
    """Reads everything, then checks norms and hash constants.

    Args:
      advance: told of every read, in bytes; the sum is that of all tensors.
    Raises: CheckpointError, naming the tensor, where a read fails, a float is not finite, a marker holds another value,
      a family of centred norms has its mean at MEAN_LIMIT or beyond, or hash constants are not the config's.
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


def check_norms(store: Store) -> None:
    """Holds every family of centred norms against the convention that its weights lie around zero.

    Raises: CheckpointError, naming the family's tensor that is farthest off, where the mean of a family is not below
      MEAN_LIMIT in size: a conversion added the 1 that the network adds itself.
    """
    means: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for name in store.names():
        if _CENTRED.search(name) and not name.startswith("model.visual."):
            means[_NUMBER.sub(".*", name)].append((name, float(np.mean(store.read(name), dtype=np.float32))))
    for family, found in means.items():
        mean = sum(value for _, value in found) / len(found)
        if not abs(mean) < MEAN_LIMIT:
            worst, value = max(found, key=lambda item: abs(item[1]))
            raise CheckpointError(
                f"{store.info(worst).where}: mean {value:.3f}, and {mean:.3f} over {family}: these weights are used as "
                f"1 + w and lie around 0; a conversion seems to have added the 1"
            )


def check_tables(store: Store, inventory: Inventory) -> None:
    """Holds the hash constants of every n-gram table against the config; raises CheckpointError."""
    for table in inventory.tables:
        open_ngram_table(store, table.prefix)


def _all_finite(values: np.ndarray, code: str) -> bool:
    """By the bits: an exponent of all ones is an infinity or no number; no cast, so no memory for one."""
    word, exponent = _EXPONENT[code]
    bits = values.reshape(-1).view(word)
    return not bool(np.any(np.bitwise_and(bits, word(exponent)) == word(exponent)))
