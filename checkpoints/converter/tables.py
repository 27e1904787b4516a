"""Host side: an n-gram table as EXL3 rows, some thousand at a time. Read next: quantiser/ngram.py."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float16

from checkpoints.architecture import Table
from checkpoints.converter.quantise import WEIGHT_BYTES, Advance, Settings
from checkpoints.converter.workplace import Workplace
from checkpoints.errors import CheckpointError
from checkpoints.ngram import NgramTable, open_ngram_table
from checkpoints.outlines import NGRAM_FILE, table_metadata
from checkpoints.quantize import quantize_rows
from checkpoints.store import Store, open_store
from checkpoints.write import Entry, write_entries, write_safetensors

_ROWS = 1 << 14
"""Rows of a piece: what is lost where a run is killed."""


def table_files(tables: int) -> list[str]:
    """Names of the side files of that many tables."""
    stem = NGRAM_FILE.removesuffix(".safetensors")
    return [NGRAM_FILE] if tables == 1 else [f"{stem}_{i + 1}.safetensors" for i in range(tables)]


def quantise_table(
    store: Store, work: Workplace, table: Table, file_name: str, settings: Settings, advance: Advance
) -> None:
    """Writes one table's side file. Raises CheckpointError where a row is not finite or too large for its scale."""
    rows = open_ngram_table(store, table.prefix)
    stem = file_name.removesuffix(".safetensors")
    bias_HD = _biases(rows, work.pieces / f"{stem}-bias.safetensors")
    pieces = {}
    for first, last in _ranges(table, settings):
        file = pieces[first] = work.pieces / f"{stem}-{first:012d}.safetensors"
        again = file.exists()
        if not again:
            write_safetensors(file, {"rows": _quantised(rows, table, first, last, bias_HD, settings)})
        advance((last - first) * table.row_dim * WEIGHT_BYTES, again=again)
    entries = list(_entries(table, bias_HD, pieces, settings))
    write_entries(work.pack / file_name, entries, table_metadata(entries, settings.recipe))
    for file in (*pieces.values(), work.pieces / f"{stem}-bias.safetensors"):
        file.unlink()


def _ranges(table: Table, settings: Settings) -> Iterator[tuple[int, int]]:
    """Pieces of rows, none across two shards."""
    shards = table.shards if settings.recipe.ngram_layout == "shards" else 1
    each = table.rows // shards
    for shard in range(shards):
        for first in range(shard * each, (shard + 1) * each, _ROWS):
            yield first, min(first + _ROWS, (shard + 1) * each)


def _heads(offsets: np.ndarray, first: int, last: int) -> np.ndarray:
    return np.searchsorted(offsets, np.arange(first, last), side="right") - 1


def _biases(rows: NgramTable, file: Path) -> Float16[np.ndarray, "H D"]:
    """The mean row of every head, kept for a run that is taken up."""
    if not file.exists():
        sums = np.zeros((len(rows.sizes), rows.row_dim))
        for first in range(0, int(rows.sizes.sum()), _ROWS):
            last = min(first + _ROWS, int(rows.sizes.sum()))
            values = rows.lookup(np.arange(first, last)).astype(np.float64)
            np.add.at(sums, _heads(rows.offsets, first, last), values)
        write_safetensors(file, {"bias": (sums / rows.sizes[:, None]).astype(np.float16)})
    with open_store(file) as store:
        return store.read("bias")


def _quantised(
    rows: NgramTable, table: Table, first: int, last: int, bias_HD: np.ndarray, settings: Settings
) -> np.ndarray:
    values = rows.lookup(np.arange(first, last))
    try:
        return quantize_rows(values, settings.ngram_bits, bias_HD, _heads(rows.offsets, first, last))
    except ValueError as error:
        raise CheckpointError(f"{table.prefix}ngram_embedding, rows from {first}: {error}") from error


def _entries(table: Table, bias_HD: np.ndarray, pieces: dict[int, Path], settings: Settings) -> Iterator[Entry]:
    module, words = f"{table.prefix}ngram_embedding.", 1 + table.row_dim * settings.ngram_bits // 16
    if settings.recipe.ngram_layout == "whole":
        yield Entry(f"{module}trellis", "I16", (table.rows, words), partial(_rows, list(pieces.values())))
    else:
        each = table.rows // table.shards
        for shard in range(table.shards):
            own = [file for first, file in pieces.items() if first // each == shard]
            yield Entry(f"{module}shard_{shard}.trellis", "I16", (each, words), partial(_rows, own))
    yield Entry(f"{module}head_bias", "F16", bias_HD.shape, lambda: [bias_HD])
    for name, values in (
        ("head_offsets", table.offsets),
        ("head_vocab_sizes", table.sizes),
        ("layer_multipliers", table.multipliers),
    ):
        yield Entry(f"{module}{name}", "I64", (len(values),), partial(_integers, values))


def _rows(files: list[Path]) -> Iterator[np.ndarray]:
    for file in files:
        with open_store(file) as store:
            yield store.read("rows")


def _integers(values: tuple[int, ...]) -> list[np.ndarray]:
    return [np.array(values, np.int64)]
