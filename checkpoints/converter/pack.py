"""Host side: the whole of a conversion to EXL3: every unit's file, then the files beside them, as published packs have
them. Read next: quantise.py, tables.py.
"""

from functools import partial

from checkpoints.architecture import Table
from checkpoints.converter.about import ERRORS, error_summary, pack_config, report
from checkpoints.converter.dequantise import part_entries
from checkpoints.converter.plain import in_side_file, plain_entries, stored, write_side_files
from checkpoints.converter.quantise import WEIGHT_BYTES, Advance, Calibrator, Settings, errors_in, quantise_unit
from checkpoints.converter.tables import quantise_table, table_files
from checkpoints.converter.texts import copy_texts, write_index
from checkpoints.converter.units import Unit, shard_names
from checkpoints.converter.widths import part_linears
from checkpoints.converter.workplace import Workplace
from checkpoints.inventory import Inventory
from checkpoints.store import Store, open_store
from checkpoints.write import Entry, write_entries, write_json

REPORT = "quantization_report.json"


def quantise(
    store: Store,
    inventory: Inventory,
    units: list[Unit],
    work: Workplace,
    settings: Settings,
    calibrator: Calibrator | None,
    advance: Advance,
) -> None:
    """Writes an EXL3 pack into `work.pack`.

    Args:
      units: of the inventory. calibrator: None searches without Hessians. advance: told of `work_bytes` in all.
    Raises: CheckpointError where a weight is not finite, or does not fit the dtype that its recipe stores it in.
    """
    tables = [unit for unit in units if isinstance(unit.parts[0] if unit.parts else None, Table)]
    numbered = [unit for unit in units if unit not in tables]
    for unit, name in zip(tables, table_files(len(tables)), strict=True):
        _table_file(store, inventory, work, unit, name, settings, advance)
        if calibrator is not None:
            calibrator.end(unit, work.pack / name)
    for unit, name in zip(numbered, shard_names(len(numbered)), strict=True):
        _unit_file(store, work, unit, name, settings, calibrator, advance)
        if calibrator is not None:
            calibrator.end(unit, work.pack / name)
    write_side_files(store, inventory, work, settings)
    write_index(work.pack)
    copy_texts(store.path, work.pack)
    write_json(work.pack / REPORT, report(work.pack, units, settings))
    write_json(work.pack / "config.json", pack_config(store, units, settings, calibrator))


def work_bytes(units: list[Unit], settings: Settings) -> int:
    """What `quantise` tells of: two bytes for every weight of quantised linears and tables."""
    parts = [part for unit in units for part in unit.parts]
    weights = sum(
        linear.shape[0] * linear.shape[1]
        for part in parts
        for linear in part_linears(part)
        if linear.name in settings.widths
    )
    return WEIGHT_BYTES * (weights + sum(part.rows * part.row_dim for part in parts if isinstance(part, Table)))


def pack_bytes(units: list[Unit], settings: Settings, store: Store) -> int:
    """About what the result takes: the quantised weights at their widths, and everything else as it is."""
    total = sum(store.info(name).nbytes for name in store.names())
    parts = [part for unit in units for part in unit.parts]
    for linear in (linear for part in parts for linear in part_linears(part) if linear.name in settings.widths):
        weights = linear.shape[0] * linear.shape[1]
        total += int(weights * settings.widths[linear.name] / 8) - WEIGHT_BYTES * weights
    for table in (part for part in parts if isinstance(part, Table) and settings.ngram_bits):
        total += table.rows * table.row_dim * settings.ngram_bits // 8 - WEIGHT_BYTES * table.rows * table.row_dim
    return max(total, 0)


def _table_file(
    store: Store, inventory: Inventory, work: Workplace, unit: Unit, name: str, settings: Settings, advance: Advance
) -> None:
    (table,) = unit.parts
    assert isinstance(table, Table)
    total = table.rows * table.row_dim * WEIGHT_BYTES
    if (work.pack / name).exists():
        advance(total, again=True)
    elif settings.ngram_bits:
        quantise_table(store, work, table, name, settings, advance)
    else:
        write_entries(work.pack / name, list(part_entries(store, inventory, table, "BF16")), {"format": "pt"})
        advance(total)


def _unit_file(
    store: Store,
    work: Workplace,
    unit: Unit,
    name: str,
    settings: Settings,
    calibrator: Calibrator | None,
    advance: Advance,
) -> None:
    """Quantises a unit and joins its pieces; a file that is there is whole."""
    if (work.pack / name).exists():
        advance(work_bytes([unit], settings), again=True)
        return
    pieces = quantise_unit(store, work, unit, settings, calibrator, advance)
    stores = [open_store(piece) for piece in pieces]
    try:
        errors = {key: value for piece in stores for key, value in errors_in(piece.metadata(piece.path.name)).items()}
        entries = [Entry(i.name, i.dtype, i.shape, partial(stored, s, i.name)) for s in stores for i in _infos(s)]
        entries += [entry for entry in plain_entries(store, unit, settings) if not in_side_file(entry.name, settings)]
        # In the order of names an expert's tensors are neighbours, and one read brings them all.
        entries.sort(key=lambda entry: entry.name)
        metadata = {"format": "pt", ERRORS: error_summary(errors)} if errors else {"format": "pt"}
        write_entries(work.pack / name, entries, metadata)
    finally:
        for piece in stores:
            piece.close()
    for piece in pieces:
        piece.unlink()


def _infos(store: Store):
    return [store.info(name) for name in store.names()]
