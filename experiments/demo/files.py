"""Host side: writes a checkpoint folder: two shards with an index, the n-gram side file beside them, and JSON files.

Read next: ../make_demo.py.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
SIDE_FILE = "ngram_embedding.safetensors"


def write_shards(folder: Path, tensors: Mapping[str, np.ndarray], first_layers: int) -> None:
    """Writes the shards and their index; the first one ends after `first_layers` decoder layers."""
    shard_of = {name: SHARDS[not _comes_first(name, first_layers)] for name in sorted(tensors)}
    for shard in SHARDS:
        save_file(
            {name: np.ascontiguousarray(tensors[name]) for name in shard_of if shard_of[name] == shard},
            folder / shard,
            metadata={"format": "pt"},
        )
    total = sum(array.nbytes for array in tensors.values())
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": shard_of}, indent=0)


def write_json(path: Path, value: Any, indent: int = 2) -> None:
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", "utf-8")


def mean_bits(tensors: Mapping[str, np.ndarray], layer_prefix: str) -> float:
    """Average width of the EXL3 weights under a prefix."""
    layers = [array for name, array in tensors.items() if name.startswith(layer_prefix) and name.endswith(".trellis")]
    return 16 * sum(array.size for array in layers) / sum(256 * array.shape[0] * array.shape[1] for array in layers)


def _comes_first(name: str, first_layers: int) -> bool:
    if ".embed_tokens." in name:
        return True
    parts = name.split(".layers.")
    return len(parts) == 2 and not name.startswith("mtp.") and int(parts[1].split(".")[0]) < first_layers
