"""Host side: an EXL3 pack as a plain checkpoint: every layer multiplied out, every n-gram row decoded.

The names stay, and experts take the form that goes with them: fused under the published prefix and in a draft head, one
tensor each under the prefix of Transformers. The vision tower is copied as it is stored. Read next: units.py.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from jaxtyping import Float32

from checkpoints import exl3
from checkpoints.architecture import Experts, Linear, Part, Plain, Table
from checkpoints.chunks import read_chunks
from checkpoints.converter.texts import copy_texts, without_quantization, write_index
from checkpoints.converter.units import network_units, shard_names
from checkpoints.converter.workplace import Workplace
from checkpoints.errors import CheckpointError
from checkpoints.headers import DTYPES
from checkpoints.inventory import Inventory
from checkpoints.naming import MTP_PREFIX, PUBLISHED_PREFIX, expert_prefix, read_expert
from checkpoints.ngram import open_ngram_table
from checkpoints.quantiser.rotation import rotate_columns, rotate_rows
from checkpoints.store import Store
from checkpoints.write import Entry, write_entries, write_json

Advance = Callable[[int], None]
_TABLE_ROWS = 1 << 16


def dequantise(store: Store, inventory: Inventory, work: Workplace, dtype: str, advance: Advance) -> None:
    """Writes the plain checkpoint into `work.pack`.

    Args:
      inventory: of `store`. dtype: safetensors code of all floats. advance: told of weights done, in bytes of `dtype`.
    Raises: CheckpointError where a layer has a bias, or a value is not finite in `dtype`.
    """
    units = network_units(inventory)
    names = shard_names(len(units) + bool(inventory.vision))
    for unit, name in zip(units, names, strict=False):
        entries = [entry for part in unit.parts for entry in part_entries(store, inventory, part, dtype)]
        _write(work, name, entries, advance)
    if inventory.vision:
        infos = [store.info(name) for name in inventory.vision]
        copies = [Entry(i.name, i.dtype, i.shape, partial(_stored, store, i.name)) for i in infos]
        _write(work, names[-1], copies, advance)
    write_index(work.pack)
    copy_texts(store.path, work.pack)
    write_json(work.pack / "config.json", without_quantization(store.config or {}))


def plain_bytes(inventory: Inventory, store: Store, dtype: str) -> int:
    """Bytes that `dequantise` writes, and of which it tells."""
    parts = [part for unit in network_units(inventory) for part in unit.parts]
    entries = [entry for part in parts for entry in part_entries(store, inventory, part, dtype)]
    return sum(entry.nbytes for entry in entries) + sum(store.info(name).nbytes for name in inventory.vision)


def layer_matrix(store: Store, prefix: str) -> Float32[np.ndarray, "K N"]:
    """W = diag(suh) H W_q H diag(svh) of an EXL3 layer, sizes as stored. Raises CheckpointError where it has a bias."""
    from pallas_kernels.exl3 import decode_numpy

    weight = exl3.read_linear(store, prefix)
    if weight.bias is not None and np.any(weight.bias):
        raise CheckpointError(f"{store.path}: {prefix}.bias: this network has no place for a bias in a plain layer")
    inner = decode_numpy(np.asarray(weight.words), weight.codebook).astype(np.float32)
    turned = rotate_rows(rotate_columns(inner))
    return weight.suh.astype(np.float32)[:, None] * turned * weight.svh.astype(np.float32)


def part_entries(store: Store, inventory: Inventory, part: Part, dtype: str) -> Iterator[Entry]:
    """Yields the plain tensors of one part of the network."""
    match part:
        case Plain():
            yield Entry(part.name, dtype, part.shape, partial(_plain, store, part.name, dtype))
        case Linear():
            if exl3.is_linear(store, part.name) or f"{part.name}.weight" in store:
                yield Entry(f"{part.name}.weight", dtype, part.shape, partial(_linear, store, part, dtype))
        case Experts() if PUBLISHED_PREFIX == inventory.prefix or part.prefix.startswith(MTP_PREFIX):
            E, F, D, module = part.count, part.ffn, part.hidden, f"{part.prefix}mlp.experts."
            both = partial(_experts, store, part, ("gate_proj", "up_proj"), dtype)
            yield Entry(f"{module}gate_up_proj", dtype, (E, 2 * F, D), both)
            yield Entry(f"{module}down_proj", dtype, (E, D, F), partial(_experts, store, part, ("down_proj",), dtype))
        case Experts():
            for linear in part.linears():
                yield Entry(f"{linear.name}.weight", dtype, linear.shape, partial(_expert, store, part, linear, dtype))
        case Table():
            yield from _table(store, part, dtype)


def _write(work: Workplace, name: str, entries: list[Entry], advance: Advance) -> None:
    if not (work.pack / name).exists():
        write_entries(work.pack / name, entries, {"format": "pt"})
    advance(sum(entry.nbytes for entry in entries))


def _cast(values: np.ndarray, dtype: str, name: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        cast = values.astype(DTYPES[dtype])
    if not np.isfinite(cast.astype(np.float32)).all():
        raise CheckpointError(f"{name}: holds a value that is not finite in {dtype}")
    return cast


def _stored(store: Store, name: str) -> Iterator[np.ndarray]:
    for _, chunk in read_chunks(store, store.info(name)):
        yield chunk


def _plain(store: Store, name: str, dtype: str) -> Iterator[np.ndarray]:
    for chunk in _stored(store, name):
        yield _cast(chunk, dtype, name)


def _linear(store: Store, part: Linear, dtype: str) -> Iterator[np.ndarray]:
    if not exl3.is_linear(store, part.name):
        yield from _plain(store, f"{part.name}.weight", dtype)
        return
    outputs, inputs = part.shape
    yield _cast(layer_matrix(store, part.name)[:inputs, :outputs].T, dtype, part.name)


def _experts(store: Store, part: Experts, projections: tuple[str, ...], dtype: str) -> Iterator[np.ndarray]:
    """Every expert's projections after one another, each [out, in]."""
    shapes = {linear.name: linear for linear in part.linears()}
    for expert in range(part.count):
        for projection in projections:
            yield from _expert(store, part, shapes[expert_prefix(part.prefix, expert, projection)], dtype)


def _expert(store: Store, part: Experts, linear: Linear, dtype: str) -> Iterator[np.ndarray]:
    if exl3.is_linear(store, linear.name):
        yield from _linear(store, linear, dtype)
        return
    expert, projection = linear.name.removeprefix(f"{part.prefix}mlp.experts.").split(".")
    yield _cast(read_expert(store, part.prefix, int(expert), projection), dtype, linear.name)


def _table(store: Store, part: Table, dtype: str) -> Iterator[Entry]:
    rows = part.rows // part.shards
    for shard in range(part.shards):
        pieces = partial(_rows, store, part, shard * rows, (shard + 1) * rows, dtype)
        yield Entry(f"{part.prefix}ngram_embedding.shard_{shard}.weight", dtype, (rows, part.row_dim), pieces)
    for name, values in (
        ("layer_multipliers", part.multipliers),
        ("ngram_heads_vocab_sizes", part.sizes),
        ("ngram_heads_offsets", part.offsets),
    ):
        yield Entry(f"{part.prefix}{name}", "I64", (len(values),), partial(_integers, values))


def _rows(store: Store, part: Table, start: int, stop: int, dtype: str) -> Iterator[np.ndarray]:
    table = open_ngram_table(store, part.prefix)
    for first in range(start, stop, _TABLE_ROWS):
        yield _cast(table.lookup(np.arange(first, min(first + _TABLE_ROWS, stop))), dtype, part.prefix)


def _integers(values: tuple[int, ...]) -> list[np.ndarray]:
    return [np.array(values, np.int64)]
