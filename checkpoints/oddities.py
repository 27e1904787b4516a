"""Host side: what is strange about a checkpoint without making it unreadable. Read next: report.py."""

import json
from collections.abc import Iterator

from checkpoints.errors import CheckpointError
from checkpoints.exl3 import MARKERS
from checkpoints.families import OTHER, OUTSIDE_LAYERS, Family
from checkpoints.inventory import compare, expected
from checkpoints.store import Store

STORAGE_FILE = "quantization_config.json"
_AVERAGE_TOLERANCE = 0.05


def oddities(store: Store, families: list[Family], quantization: dict) -> list[str]:
    """Returns one line for each thing that a reader of the pack should know.

    Args:
      families: of `store`. quantization: that part of its config.json, empty where there is none.
    """
    return [
        *_faults(store),
        *_averages(families, quantization),
        *_codebooks(families, quantization),
        *_unknown(families),
        *_files(store),
        *_stale_storage(store),
    ]


def average_bits(families: list[Family]) -> float | None:
    """Returns bits a weight over the quantised layers between embeddings and head; None where nothing is quantised."""
    inside = [f for f in families if f.quantised and f.name not in OUTSIDE_LAYERS and not f.name.startswith("MTP ")]
    values = sum(family.quantised_values for family in inside)
    return sum(family.quantised_bits for family in inside) / values if values else None


def _faults(store: Store) -> Iterator[str]:
    """What would keep the pack from loading."""
    if store.config is None:
        yield "no config.json: it cannot be told whether all tensors are there"
        return
    try:
        faults = compare(expected(store.config, store), store)
    except CheckpointError as error:
        yield f"will not load: {error}"
        return
    if faults.lines():
        yield f"will not load: {len(faults.lines())} tensors do not fit config.json: {faults.summary()}"


def _averages(families: list[Family], quantization: dict) -> Iterator[str]:
    """Config numbers are averages that a writer aimed at; they decide nothing."""
    real = average_bits(families)
    heads = [bits for family in families if family.name == "lm_head" for bits in family.bits]
    for key, found in (("bits", real), ("head_bits", heads[0] if len(heads) == 1 else None)):
        claimed = quantization.get(key)
        if found is not None and isinstance(claimed, int | float) and abs(claimed - found) > _AVERAGE_TOLERANCE:
            yield f"config.json says {key} {claimed}, the tensors have {found:.3f}"


def _codebooks(families: list[Family], quantization: dict) -> Iterator[str]:
    found: dict[str, int] = {}
    for family in families:
        for codebook, count in family.codebooks.items():
            found[codebook] = found.get(codebook, 0) + count
    if len(found) > 1:
        yield "several codebooks: " + ", ".join(f"{name} in {count}" for name, count in sorted(found.items()))
    claimed = quantization.get("codebook")
    if claimed in MARKERS and any(codebook != claimed for codebook in found):
        yield f"config.json says codebook {claimed}, markers say {', '.join(sorted(found))}"


def _unknown(families: list[Family]) -> Iterator[str]:
    for family in families:
        if family.name == OTHER:
            yield f"{family.quantised + family.plain} tensors or layers of no known part of the network"


def _files(store: Store) -> Iterator[str]:
    """Files that do not count, tensors that the index omits, and files that are not all there."""
    if store.ignored:
        yield f"ignored files: {', '.join(store.ignored)}"
    if store.unindexed:
        yield f"{len(store.unindexed)} tensors of indexed files that the index omits, {store.unindexed[0]} for one"
    stats = [file.stat() for file in store.files]
    size, disk = sum(stat.st_size for stat in stats), sum(stat.st_blocks * 512 for stat in stats)
    if 2 * disk < size:
        yield f"sparse files: {disk:,} of {size:,} bytes are on disk, a skeleton or an unfinished download"


def _stale_storage(store: Store) -> Iterator[str]:
    """Holds the writer's optional list of tensors against the headers, which alone are believed."""
    path = store.path / STORAGE_FILE
    if not store.path.is_dir() or not path.is_file():
        return
    try:
        modules = json.loads(path.read_bytes())["tensor_storage"]
        listed = {name: entry for module in modules.values() for name, entry in module["stored_tensors"].items()}
        shapes = {name: tuple(entry["shape"]) for name, entry in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        yield f"{path.name} is not what writers of this format make: {type(error).__name__}"
        return
    absent = [name for name in shapes if name not in store]
    differing = [name for name in shapes if name in store and store.info(name).shape != shapes[name]]
    unlisted = [name for name in store.names() if name not in shapes]
    for what, names in (("absent", absent), ("of another shape", differing), ("missing from it", unlisted)):
        if names:
            yield f"{path.name} is stale: {len(names)} tensors are {what}, {names[0]} for one"
