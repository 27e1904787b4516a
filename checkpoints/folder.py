"""Host side: which files of a folder make up a checkpoint. Read next: store.py.

With an index, `model.safetensors.index.json`: the shards it names. Without one: `model*.safetensors`. In both cases
also the side files that published packs keep outside the index. The index says which files belong together, not which
tensors exist: the headers do.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from checkpoints.errors import CheckpointError
from checkpoints.headers import parse_object

INDEX = "model.safetensors.index.json"
SIDE_FILES = ("ngram_embedding*.safetensors", "mtp_*.safetensors", "vision_*.safetensors")
"""Files that count although no index names them: n-gram table, draft head patches, vision tower."""


@dataclass(frozen=True)
class Folder:
    """What to read.

    files: sorted by name. ignored: names of the folder's other safetensors files. index: tensor -> shard name, or
    None without an index. config: the parsed config.json, or None.
    """

    files: tuple[Path, ...]
    ignored: tuple[str, ...] = ()
    index: dict[str, str] | None = None
    config: dict | None = None


def scan_file(path: Path) -> Folder:
    """One file that stands alone: neither its neighbours nor a config.json beside it are looked at."""
    return Folder(files=(path,))


def scan_folder(path: Path) -> Folder:
    """Lists the files of a checkpoint folder; raises CheckpointError where a shard is missing or nothing counts."""
    present = {file.name for file in path.iterdir() if file.name.endswith(".safetensors")}
    index = _read_index(path / INDEX)
    shards = _indexed_shards(path, index, present) if index is not None else _numbered_shards(path, present)
    used = shards | {name for name in present if any(fnmatchcase(name, pattern) for pattern in SIDE_FILES)}
    return Folder(
        files=tuple(path / name for name in sorted(used)),
        ignored=tuple(sorted(present - used)),
        index=index,
        config=_read_json(path / "config.json"),
    )


def _indexed_shards(path: Path, index: dict[str, str], present: Iterable[str]) -> set[str]:
    shards = set(index.values())
    missing = sorted(shards.difference(present))
    if missing:
        raise CheckpointError(f"{path / missing[0]}: missing, but {INDEX} names it ({len(missing)} missing in all)")
    return shards


def _numbered_shards(path: Path, present: Iterable[str]) -> set[str]:
    """`model*.safetensors`; names that count themselves (00001-of-00009) must be complete."""
    shards = {name for name in present if fnmatchcase(name, "model*.safetensors")}
    if not shards:
        raise CheckpointError(f"{path}: holds neither {INDEX} nor model*.safetensors")
    for name in sorted(shards):
        if match := re.fullmatch(r"(.*-)(\d+)(-of-)(\d+)(\.safetensors)", name):
            head, number, middle, count, tail = match.groups()
            for i in range(1, int(count) + 1):
                expected = f"{head}{i:0{len(number)}d}{middle}{count}{tail}"
                if expected not in shards:
                    raise CheckpointError(f"{path / expected}: missing, but {name} says there are {int(count)} shards")
    return shards


def _read_index(path: Path) -> dict[str, str] | None:
    index = _read_json(path)
    if index is None:
        return None
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: weight_map must map tensor names to file names")
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or "/" in file_name or file_name in ("", ".", ".."):
            raise CheckpointError(f"{path}: {name}: {file_name!r} is not the name of a file in this folder")
    return weight_map


def _read_json(path: Path) -> dict | None:
    try:
        return parse_object(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot read: {error.strerror}") from error
