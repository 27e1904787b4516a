"""Host side: the list of a pack's tensors that its first readers look into before they open its files.

`quantization_config.json` is the quantization part of config.json with one thing more: every tensor by its module. Our
own reader believes the headers alone (oddities.py tells where such a list is stale).
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from checkpoints.exl3 import MARKERS, TILE
from checkpoints.headers import DTYPES, TensorInfo
from checkpoints.oddities import STORAGE_FILE
from checkpoints.store import Store, open_store
from checkpoints.write import write_json


def write_storage(folder: Path, quantization: Mapping[str, object]) -> None:
    """Writes the list beside a pack's files, from their headers. quantization: that part of its config.json."""
    with open_store(folder) as store:
        write_json(folder / STORAGE_FILE, {**quantization, "tensor_storage": tensor_storage(store)})


def tensor_storage(store: Store) -> dict[str, dict]:
    """Tensors by module, and of EXL3 layers their width and what their codebook multiplies by."""
    modules: dict[str, dict[str, TensorInfo]] = defaultdict(dict)
    for name in store.names():
        module, _, ending = name.rpartition(".")
        modules[module or name][ending] = store.info(name)
    return {module: _stored(parts) | _quantised(parts) for module, parts in modules.items()}


def _stored(parts: Mapping[str, TensorInfo]) -> dict[str, dict]:
    return {
        "stored_tensors": {
            info.name: {"shape": list(info.shape), "n_bytes": info.nbytes, "dtype": f"torch.{DTYPES[info.dtype]}"}
            for info in parts.values()
        }
    }


def _quantised(parts: Mapping[str, TensorInfo]) -> dict[str, object]:
    """Nothing for plain modules and for n-gram tables, whose trellis has no scales beside it."""
    if "trellis" not in parts or "suh" not in parts:
        return {}
    bits = parts["trellis"].shape[-1] / TILE
    multiplier = {f"{marker}_multiplier": value for marker, value in MARKERS.items() if marker in parts}
    return {"quant_format": "exl3", "bits_per_weight": int(bits) if bits == int(bits) else bits, **multiplier}
