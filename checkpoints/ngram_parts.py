"""Host side: which tensors make up an n-gram table, checked before any row is read. Read next: ngram.py."""

import re
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float16, Int64

from checkpoints.errors import CheckpointError
from checkpoints.headers import TensorInfo
from checkpoints.naming import names_under, text_config
from checkpoints.ngram_hash import configured_hash
from checkpoints.store import Store

PLAIN_DTYPES = ("BF16", "F16", "F32")
CODEC_FORMAT = "exl3_ngram_trellis"
_FRAMEWORK_FORMATS = ("pt", "np", "numpy", "flax", "tf", "mlx")
# The same tensors under the names of plain checkpoints and of EXL3 packs: multipliers, sizes, offsets.
_PLAIN_HASH = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
_EXL3_HASH = tuple(f"ngram_embedding.{name}" for name in ("layer_multipliers", "head_vocab_sizes", "head_offsets"))


@dataclass(frozen=True)
class TableParts:
    """What a table is made of.

    shards: tensor names in row order. shard_ends: running sum of their rows. row_dim: values a row. bits: of an EXL3
    value, 0 for a plain table. head_bias: added to every row of a head, empty for a plain table.
    """

    shards: tuple[str, ...]
    shard_ends: Int64[np.ndarray, "S"]
    row_dim: int
    bits: int
    multipliers: Int64[np.ndarray, "N"]
    sizes: Int64[np.ndarray, "H"]
    offsets: Int64[np.ndarray, "H"]
    head_bias: Float16[np.ndarray, "H D"]


def find_parts(store: Store, prefix: str) -> TableParts:
    """Finds and checks a table's tensors; `prefix` ends with a dot. Raises CheckpointError, see `open_ngram_table`."""
    shards, kind = _shards(store, prefix)
    infos = [store.info(name) for name in shards]
    hash_names = [prefix + name for name in (_EXL3_HASH if kind == "trellis" else _PLAIN_HASH)]
    multipliers, sizes, offsets = (_int64_vector(store, name) for name in hash_names)
    _check_shards(infos, kind)
    head_bias = _head_bias(store, prefix, len(sizes)) if kind == "trellis" else np.empty((0, 0), np.float16)
    row_dim = head_bias.shape[1] or infos[0].shape[1]
    bits = _bits(infos, row_dim) if kind == "trellis" else 0
    parts = TableParts(
        shards, np.cumsum([info.shape[0] for info in infos]), row_dim, bits, multipliers, sizes, offsets, head_bias
    )
    _check_ranges(parts, store.info(hash_names[1]))
    for info in infos if bits else ():
        _check_metadata(store.metadata(info.file.name), info, parts)
    return parts


def check_hash(store: Store, prefix: str, parts: TableParts) -> None:
    """Holds a table's hash tensors against what the store's config.json implies; does nothing without one.

    Raises: CheckpointError where they contradict each other or the config does not know this layer's table.
    """
    if store.config is None:
        return
    text = text_config(store.config)
    layers = _ngram_layers(text)
    match = re.search(r"layers\.(\d+)\.", prefix)
    if match is None or int(match[1]) + 1 not in layers:
        raise CheckpointError(
            f"{store.path}: {prefix}: config.json's ple_layer_ids (from 1) are {layers}: no such table"
        )
    derived = configured_hash(text, layers.index(int(match[1]) + 1))
    stored = (parts.multipliers, parts.sizes, parts.offsets)
    for what, ours, theirs in zip(("multipliers", "sizes", "offsets"), derived, stored, strict=True):
        if not np.array_equal(ours, theirs):
            raise CheckpointError(
                f"{store.path}: {prefix}: hash {what} are {theirs.tolist()}, but config.json implies {ours.tolist()}"
            )


def _ngram_layers(text: dict) -> list[int]:
    layers = text.get("ple_layer_ids") or []
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        raise CheckpointError(f"config.json: ple_layer_ids must be a list of integers, not {layers!r}")
    return sorted(set(layers))


def _shards(store: Store, prefix: str) -> tuple[tuple[str, ...], str]:
    """The table's tensors in row order, numbers compared as numbers, and what they are: trellis or weight."""
    pattern = re.compile(re.escape(f"{prefix}ngram_embedding.") + r"(?:shard_(\d+)\.)?(trellis|weight)")
    found = [match for name in names_under(store, f"{prefix}ngram_embedding.") if (match := pattern.fullmatch(name))]
    kinds = {match[2] for match in found}
    if len(kinds) != 1:
        what = "both trellis and weight" if kinds else "no trellis, no weight, no shard"
        raise CheckpointError(f"{store.path}: {prefix}ngram_embedding: one n-gram table was wanted, found {what}")
    (kind,) = kinds
    whole = [match[0] for match in found if match[1] is None]
    if whole and len(found) > 1:
        raise CheckpointError(f"{store.path}: {whole[0]}: shards of the same table are there as well")
    if whole:
        return (whole[0],), kind
    numbers = {int(match[1]): match[0] for match in found}
    for shard in range(max(numbers)):
        if shard not in numbers:
            raise CheckpointError(f"{store.path}: {prefix}ngram_embedding.shard_{shard}.{kind}: missing")
    if len(numbers) != len(found):
        raise CheckpointError(f"{store.path}: {prefix}ngram_embedding: one shard number is spelled in two ways")
    return tuple(numbers[shard] for shard in range(len(numbers))), kind


def _int64_vector(store: Store, name: str) -> np.ndarray:
    info = store.info(name)
    if info.dtype != "I64" or len(info.shape) != 1 or not info.shape[0]:
        raise CheckpointError(f"{info.where}: I64 of one axis was wanted")
    return store.read(name)


def _head_bias(store: Store, prefix: str, heads: int) -> np.ndarray:
    info = store.info(f"{prefix}ngram_embedding.head_bias")
    if info.dtype != "F16" or len(info.shape) != 2 or info.shape[0] != heads or not info.shape[1]:
        raise CheckpointError(f"{info.where}: F16 [{heads}, row_dim] was wanted")
    bias = store.read(info.name)
    if not np.isfinite(bias).all():
        raise CheckpointError(f"{info.where}: holds values that are not finite")
    return bias


def _check_shards(infos: list[TensorInfo], kind: str) -> None:
    dtypes = ("I16",) if kind == "trellis" else PLAIN_DTYPES
    for info in infos:
        if info.dtype not in dtypes or len(info.shape) != 2 or not info.shape[1]:
            raise CheckpointError(f"{info.where}: {' or '.join(dtypes)} [rows, row] was wanted")
        if (info.dtype, info.shape[1]) != (infos[0].dtype, infos[0].shape[1]):
            raise CheckpointError(f"{info.where}: differs from {infos[0].where}, a shard of the same table")


def _bits(infos: list[TensorInfo], row_dim: int) -> int:
    bits, rest = divmod((infos[0].shape[1] - 1) * 16, row_dim)
    if rest or not 1 <= bits <= 8:
        raise CheckpointError(f"{infos[0].where}: rows are 1 + {row_dim} * bits / 16 words with 1 to 8 bits")
    return bits


def _check_ranges(parts: TableParts, sizes: TensorInfo) -> None:
    """Heads own ranges of rows, one after the other, all within the table."""
    heads, orders = len(parts.sizes), len(parts.multipliers) - 1
    if orders < 1 or heads % orders or len(parts.offsets) != heads:
        raise CheckpointError(
            f"{sizes.where}: {heads} heads with {len(parts.offsets)} offsets and {orders + 1} multipliers do not fit"
        )
    if np.any(parts.sizes < 1) or not np.array_equal(parts.offsets, np.cumsum(parts.sizes) - parts.sizes):
        raise CheckpointError(f"{sizes.where}: the heads' offsets are not the running sum of their sizes")
    needed, rows = int(parts.sizes.sum()), int(parts.shard_ends[-1])
    if needed > rows:
        raise CheckpointError(f"{sizes.where}: the heads need {needed} rows, but the table has {rows}")


def _check_metadata(metadata: dict[str, str], info: TensorInfo, parts: TableParts) -> None:
    """Whatever the file says about its codec must be what the tensors say; other formats' keys mean nothing here."""
    allowed = {"format": {CODEC_FORMAT, *_FRAMEWORK_FORMATS}, "codebook": {"mul1"}}
    if metadata.get("format") == CODEC_FORMAT:
        rows = {str(parts.shard_ends[-1]), str(info.shape[0])}
        allowed |= {"version": {"1"}, "K": {str(parts.bits)}, "row_dim": {str(parts.row_dim)}}
        allowed |= {"rows": rows, "shard_rows": rows}
    for key in allowed.keys() & metadata.keys():
        if metadata[key] not in allowed[key]:
            wanted = " or ".join(sorted(allowed[key]))
            raise CheckpointError(f"{info.where}: the file's metadata has {key} {metadata[key]!r}; {wanted} was wanted")
