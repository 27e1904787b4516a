"""Host side: writes a checkpoint folder: two shards with an index, the n-gram side file beside them, and JSON files.

Read next: ../make_demo.py.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
SIDE_FILE = "ngram_embedding.safetensors"
DTYPES = {"bfloat16": "BF16", "float16": "F16", "int16": "I16", "int32": "I32", "int64": "I64"}


def write_shards(folder: Path, tensors: Mapping[str, np.ndarray], first_layers: int) -> None:
    """Writes the shards and their index; the first one ends after `first_layers` decoder layers."""
    shard_of = {name: SHARDS[not _comes_first(name, first_layers)] for name in sorted(tensors)}
    for shard in SHARDS:
        part = {name: tensors[name] for name in shard_of if shard_of[name] == shard}
        write_tensors(folder / shard, part, {"format": "pt"})
    total = sum(array.nbytes for array in tensors.values())
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": shard_of}, indent=0)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Writes one safetensors file: length of the header, header, data; the widest types first, so that all are aligned.

    Equal tensors and metadata give equal bytes, which the library's own writer does not promise.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    start = 0
    for name in names:
        array = tensors[name]
        span = [start, start + array.nbytes]
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": span}
        start += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensors[name].tobytes() for name in names))


def write_json(path: Path, value: Any, indent: int = 2) -> None:
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", "utf-8")


def mean_bits(tensors: Mapping[str, np.ndarray], layer_prefix: str) -> float:
    """Average width of the EXL3 linear weights under a prefix; an n-gram table has two axes and is not one."""
    layers = [array for name, array in tensors.items() if name.startswith(layer_prefix) and name.endswith(".trellis")]
    layers = [array for array in layers if array.ndim == 3]
    return 16 * sum(array.size for array in layers) / sum(256 * array.shape[0] * array.shape[1] for array in layers)


def _comes_first(name: str, first_layers: int) -> bool:
    if ".embed_tokens." in name:
        return True
    parts = name.split(".layers.")
    return len(parts) == 2 and not name.startswith("mtp.") and int(parts[1].split(".")[0]) < first_layers
