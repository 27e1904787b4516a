"""Host side: everything that `inspect` tells about a checkpoint, as plain values. Read next: families.py, oddities.py.

Whatever opens can be reported, also a pack that does not fit its config: what does not fit is then among the odd
things.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from checkpoints.errors import CheckpointError
from checkpoints.exl3 import check_quantization
from checkpoints.families import Family, families
from checkpoints.folder import INDEX, SIDE_FILES
from checkpoints.naming import PUBLISHED_PREFIX, language_prefix
from checkpoints.oddities import average_bits, oddities
from checkpoints.store import Store

_SHARD_NAME = re.compile(rb'"([^"/]+\.safetensors)"')


@dataclass(frozen=True)
class FileReport:
    """One file. indexed: named by the index, or there is none and it is no side file."""

    name: str
    nbytes: int
    tensors: int
    indexed: bool


@dataclass(frozen=True)
class Report:
    """What a checkpoint holds.

    path: what was opened. naming: whose names it uses, and whether it is quantised. architecture: model_type, or None.
    digest: of names, sizes and headers. tensors, nbytes: in all files; disk_bytes: what they take on disk.
    average_bits: over the quantised layers, None where there are none. quantization: that part of config.json. dtypes:
    of plain tensors -> count and bytes. licence: name and where it was found, or None. ignored: safetensors files that
    do not count. outside_index: tensors that no index names. odd: lines for a reader.
    """

    path: str
    naming: str
    architecture: str | None
    digest: str
    tensors: int
    nbytes: int
    disk_bytes: int
    average_bits: float | None
    quantization: dict
    families: list[Family]
    dtypes: dict[str, dict[str, int]]
    files: list[FileReport]
    licence: str | None
    ignored: list[str]
    outside_index: int
    odd: list[str]


def report(store: Store) -> Report:
    """Makes the report of an open store; reads headers and small text files, no tensor."""
    counted, quantization, files = families(store), _quantization(store), list(_files(store))
    return Report(
        path=str(store.path),
        naming=_naming(store, counted),
        architecture=(store.config or {}).get("model_type"),
        digest=store.digest(),
        tensors=len(store.names()),
        nbytes=sum(file.nbytes for file in files),
        disk_bytes=sum(file.stat().st_blocks * 512 for file in store.files),
        average_bits=average_bits(counted),
        quantization=quantization,
        families=counted,
        dtypes=_plain_dtypes(store),
        files=files,
        licence=_licence(store.path if store.path.is_dir() else store.path.parent, store.config or {}),
        ignored=list(store.ignored),
        outside_index=len(store.unindexed) + sum(file.tensors for file in files if not file.indexed),
        odd=oddities(store, counted, quantization),
    )


def _naming(store: Store, counted: list[Family]) -> str:
    form = "EXL3" if any(family.quantised for family in counted) else "plain"
    try:
        prefix = language_prefix(store)
    except CheckpointError:
        return f"no text model, {form}"
    return f"{'published' if prefix == PUBLISHED_PREFIX else 'Transformers'} names ({prefix}*), {form}"


def _quantization(store: Store) -> dict:
    """The quantization part as far as it is there; what is wrong with it is an oddity, not an error."""
    try:
        return check_quantization(store.config) or {}
    except CheckpointError:
        found = (store.config or {}).get("quantization_config")
        return found if isinstance(found, dict) else {}


def _files(store: Store) -> Iterator[FileReport]:
    tensors = Counter(store.info(name).file for name in store.names())
    indexed = _indexed_files(store.path / INDEX)
    for file in store.files:
        side = any(fnmatch(file.name, pattern) for pattern in SIDE_FILES)
        listed = file.name in indexed if indexed is not None else not side
        yield FileReport(file.name, file.stat().st_size, tensors[file], listed)


def _indexed_files(path: Path) -> set[str] | None:
    """File names in the index, found without parsing its hundreds of thousands of entries again."""
    return {match.decode() for match in _SHARD_NAME.findall(path.read_bytes())} if path.is_file() else None


def _plain_dtypes(store: Store) -> dict[str, dict[str, int]]:
    """Tensors outside EXL3 layers and tables."""
    found: dict[str, dict[str, int]] = {}
    for name in store.names():
        module, _, ending = name.rpartition(".")
        if ending == "trellis" or f"{module}.trellis" in store:
            continue
        info = store.info(name)
        entry = found.setdefault(info.dtype, {"tensors": 0, "nbytes": 0})
        entry["tensors"] += 1
        entry["nbytes"] += info.nbytes
    return dict(sorted(found.items()))


def _licence(folder: Path, config: dict) -> str | None:
    """The first of: README.md's front matter, config.json's `license`, the name of a licence file."""
    files = sorted(file.name for file in folder.glob("LICEN[CS]E*"))
    named = _front_matter(folder / "README.md") or config.get("license")
    if isinstance(named, str):
        return f"{named} ({', '.join(files)})" if files else named
    return ", ".join(files) or None


def _front_matter(path: Path) -> str | None:
    """`license_name` or `license` of the block between two lines of three dashes that a model card starts with."""
    if not path.is_file():
        return None
    head = re.match(r"---\s*\n(.*?)\n---", path.read_text(encoding="utf-8", errors="replace")[:65536], re.DOTALL)
    found = dict(re.findall(r"^(license(?:_name)?):\s*[\"']?([^\s\"'#]+)", head[1], re.MULTILINE)) if head else {}
    return found.get("license_name") or found.get("license")
