"""Host side: the hashed n-gram table of a store. It is never read whole: a lookup reads the rows it needs.

A table is plain rows or EXL3 rows (a scale and a ring of bits each, in another bit order than the linear layers),
in one tensor or in numbered shards. Read next: ngram_hash.py (which rows), ngram_parts.py (which tensors).
"""

import threading
from collections import OrderedDict

import numpy as np
from jaxtyping import Float16, Float32, Int, Int16, Int64, UInt16

from checkpoints import ngram_hash
from checkpoints.headers import DTYPES
from checkpoints.ngram_parts import TableParts, check_hash, find_parts
from checkpoints.store import Store

WINDOW = 16
"""Bits of a state."""
_MUL1 = 0x83DCD12D
_MUL1_SCALE, _MUL1_OFFSET = np.float32(0.00676727294921875), np.float32(-10.3828125)


def open_ngram_table(store: Store, prefix: str, *, cache_rows: int = 0) -> "NgramTable":
    """Opens a table: reads its hash tensors and head biases, none of its rows.

    Args:
      prefix: the embedding module, dot included, as in `model.language_model.layers.1.ple.ple_embedding.`.
      cache_rows: decoded rows to keep, least recently used first out; 0 keeps none.
    Raises: CheckpointError where a tensor or a shard is missing, misshapen or of another format, the table is shorter
      than its heads need, or, with a config.json, the hash tensors are not what it implies.
    """
    parts = find_parts(store, prefix)
    check_hash(store, prefix, parts)
    return NgramTable(store, parts, cache_rows)


class NgramTable:
    """Rows of an n-gram table, by id; lookups are thread-safe.

    multipliers, offsets, sizes: int64, see ngram_hash.py. rows: of all shards. row_dim: values a row. dtype: of what
    `lookup` returns: float16 for EXL3, else the stored one. bits: of an EXL3 value, 0 for a plain table.
    """

    def __init__(self, store: Store, parts: TableParts, cache_rows: int = 0):
        self.multipliers: Int64[np.ndarray, "N"] = parts.multipliers
        self.offsets: Int64[np.ndarray, "H"] = parts.offsets
        self.sizes: Int64[np.ndarray, "H"] = parts.sizes
        self.rows, self.row_dim, self.bits = int(parts.shard_ends[-1]), parts.row_dim, parts.bits
        self.dtype = np.dtype(np.float16) if parts.bits else DTYPES[store.info(parts.shards[0]).dtype]
        self._store, self._parts, self._cache_rows = store, parts, cache_rows
        self._values = mul1_values() if parts.bits else np.empty(0, np.float32)
        self._cache: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def row_ids(self, tokens_BN: Int[np.ndarray, "B N"], eos: int) -> Int64[np.ndarray, "B H"]:
        """Returns the rows that tokens read: `ngram_hash.row_ids` with this table's constants."""
        return ngram_hash.row_ids(tokens_BN, eos, self.multipliers, self.sizes, self.offsets)

    def lookup(self, ids_BH: Int[np.ndarray, "B H"]) -> np.ndarray:
        """Reads rows, each distinct one once; what the cache holds changes no value.

        Args:
          ids_BH: row ids in [0, rows), of any shape; a row's head follows from its id.
        Returns: [B, H, row_dim] of `dtype`.
        Raises: IndexError for an id out of range; CheckpointError where the rows cannot be read.
        """
        ids_BH = np.asarray(ids_BH)
        if ids_BH.size and not 0 <= ids_BH.min() <= ids_BH.max() < self.rows:
            raise IndexError(f"n-gram rows {ids_BH.min()} to {ids_BH.max()}, but the table has {self.rows}")
        wanted, place = np.unique(ids_BH.astype(np.int64), return_inverse=True)
        rows = self._cached_rows(wanted) if self._cache_rows else self._read_rows(wanted)
        return rows[place.reshape(ids_BH.shape)]

    def _cached_rows(self, wanted: np.ndarray) -> np.ndarray:
        rows = np.empty((len(wanted), self.row_dim), self.dtype)
        with self._lock:
            held = {i: self._cache[row] for i, row in enumerate(wanted.tolist()) if row in self._cache}
        for i, row in held.items():
            rows[i] = row
        missing = np.array([i for i in range(len(wanted)) if i not in held], np.int64)
        rows[missing] = self._read_rows(wanted[missing])
        with self._lock:
            for i, row in enumerate(wanted.tolist()):
                self._cache[row] = rows[i].copy()  # a view would keep the whole batch alive
                self._cache.move_to_end(row)
            while len(self._cache) > self._cache_rows:
                self._cache.popitem(last=False)
        return rows

    def _read_rows(self, wanted: np.ndarray) -> np.ndarray:
        """Ascending row ids -> rows, shard by shard."""
        ends = self._parts.shard_ends
        cuts = np.searchsorted(wanted, np.concatenate([[0], ends]))
        pieces = [
            self._store.read_rows(name, wanted[first:last] - (ends[shard - 1] if shard else 0))
            for shard, (name, first, last) in enumerate(zip(self._parts.shards, cuts, cuts[1:], strict=False))
            if first < last
        ]
        if not pieces:
            return np.empty((0, self.row_dim), self.dtype)
        stored = np.concatenate(pieces)
        return self._decode(stored, wanted) if self.bits else stored

    def _decode(self, stored: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        head = np.searchsorted(self.offsets, wanted, side="right") - 1
        # A corrupt scale makes its row infinite or NaN, which is for the reader of the logits to refuse, not for NumPy.
        with np.errstate(over="ignore", invalid="ignore"):
            return decode_rows(stored, self._parts.head_bias[head], self.bits, self._values).astype(np.float16)


def decode_rows(
    rows_RW: Int16[np.ndarray, "R W"],
    bias_RD: Float16[np.ndarray, "R D"],
    bits: int,
    values: Float32[np.ndarray, "65536"],
) -> Float32[np.ndarray, "R D"]:
    """Decodes EXL3 table rows: row[i] = value(state_i) * scale + bias[i] in float32, not yet rounded to float16.

    Args:
      rows_RW: word 0 is the float16 scale, the other D * bits / 16 words are the ring. bias_RD: of each row's head.
      values: the codebook, see `mul1_values`.
    Source: the n-gram codec of exllamav3.
    """
    scale_R1 = rows_RW[:, :1].copy().view(np.float16).astype(np.float32)
    values_RD = values[row_states(rows_RW[:, 1:], bits)]
    return values_RD * scale_R1 + bias_RD.astype(np.float32)


def row_states(words_RW: Int16[np.ndarray, "R W"], bits: int) -> UInt16[np.ndarray, "R D"]:
    """Returns the 16-bit states of rings read least significant bit first.

    Symbol i is bits [i*bits, (i+1)*bits) of the ring; state i is symbol i, with symbol i-1 above it, symbol i-2 above
    that, and so on round the ring, cut to 16 bits.
    """
    stream = np.unpackbits(np.ascontiguousarray(words_RW, "<i2").view(np.uint8), axis=1, bitorder="little")
    bits_RDK = stream.reshape(len(words_RW), -1, bits).astype(np.uint32)
    symbols_RD = (bits_RDK << np.arange(bits, dtype=np.uint32)).sum(axis=2, dtype=np.uint32)
    states_RD = np.zeros_like(symbols_RD)
    for back in range(-(-WINDOW // bits)):
        states_RD |= np.roll(symbols_RD, back, axis=1) << np.uint32(back * bits)
    return (states_RD & np.uint32(0xFFFF)).astype(np.uint16)


def mul1_values() -> Float32[np.ndarray, "65536"]:
    """Returns the mul1 codebook, float16 values held as float32, by state: (1024 + byte sum of s * m) * k + c."""
    x = (np.arange(1 << 16, dtype=np.uint64) * np.uint64(_MUL1)).astype(np.uint32)
    byte_sum = x.view(np.uint8).reshape(-1, 4).sum(axis=1, dtype=np.uint32)
    # Exact in float32, so that the cast is the only rounding.
    exact = (byte_sum + np.uint32(1024)).astype(np.float32) * _MUL1_SCALE + _MUL1_OFFSET
    return exact.astype(np.float16).astype(np.float32)
