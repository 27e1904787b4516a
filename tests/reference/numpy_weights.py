"""Host, tests only. Finds the matrices of a checkpoint in either naming, plain or EXL3, as float arrays.

Read next: `numpy_layers.py`.
"""

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes  # noqa: F401  (names bfloat16 for NumPy, which safetensors asks for)
import numpy as np
from safetensors.numpy import load_file

from tests.reference import numpy_exl3

TEXT_PREFIXES = ("model.language_model.", "model.")


def load_tensors(folder: Path) -> dict[str, np.ndarray]:
    """All tensors of all `*.safetensors` files of a folder, side files included, as stored."""
    found: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("*.safetensors")):
        if path.name != "golden.safetensors":
            found.update(load_file(path))
    return found


class Weights:
    """Reads weights by the model's short names (`layers.0.mlp.gate`), as arrays of one float type.

    Matrices come [out, in] whatever the file holds, cut to the logical sizes that the caller states.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray], dtype: type = np.float64):
        self.tensors, self.dtype = tensors, dtype
        self.prefix = next(p for p in TEXT_PREFIXES if f"{p}embed_tokens.weight" in tensors)
        self.cache: dict[str, np.ndarray] = {}

    def full(self, name: str) -> str:
        return name if name.startswith(("mtp.", "lm_head")) else self.prefix + name

    def has(self, name: str) -> bool:
        return any(f"{self.full(name)}{end}" in self.tensors for end in ("", ".weight", ".trellis"))

    def plain(self, name: str) -> np.ndarray:
        """A tensor as it stands (`A_log`, `dt_bias`) or its `.weight`."""
        if name not in self.cache:
            full = self.full(name)
            stored = self.tensors[full if full in self.tensors else full + ".weight"]
            self.cache[name] = np.asarray(stored).astype(self.dtype)
        return self.cache[name]

    def linear(self, name: str, outputs: int, inputs: int) -> np.ndarray:
        """[outputs, inputs] of a plain or EXL3 linear map; padded rows and columns are cut."""
        if name not in self.cache and f"{self.full(name)}.trellis" in self.tensors:
            self.cache[name] = numpy_exl3.layer_matrix(self.tensors, self.full(name)).T.astype(self.dtype)
        return self.plain(name)[:outputs, :inputs]

    def expert(self, layer: str, e: int, hidden: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """gate, up [size, hidden] and down [hidden, size] of one expert; fused tensors hold gate rows first."""
        base = f"{layer}.mlp.experts"
        if self.has(f"{base}.gate_up_proj"):
            both = self.plain(f"{base}.gate_up_proj")[e]
            return both[:size], both[size:], self.plain(f"{base}.down_proj")[e]
        gate, up = (self.linear(f"{base}.{e}.{name}_proj", size, hidden) for name in ("gate", "up"))
        return gate, up, self.linear(f"{base}.{e}.down_proj", hidden, size)

    def ngram_rows(self, layer: str, ids: np.ndarray, heads: int) -> np.ndarray:
        """Table rows of ids [T, heads] -> [T, heads, row_dim]; shards are joined in numeric order."""
        base = self.full(f"{layer}.ple.ple_embedding.ngram_embedding")
        coded = f"{base}.head_bias" in self.tensors
        end = "trellis" if coded else "weight"
        if f"{base}.{end}" in self.tensors:
            rows = np.asarray(self.tensors[f"{base}.{end}"])[ids]
        else:
            first = self.tensors[f"{base}.shard_0.{end}"].shape[0]
            picked = [self.tensors[f"{base}.shard_{i // first}.{end}"][i % first] for i in ids.reshape(-1).tolist()]
            rows = np.stack(picked).reshape(*ids.shape, -1)
        if coded:
            rows = numpy_exl3.ngram_rows(rows, np.asarray(self.tensors[f"{base}.head_bias"])[None, :heads])
        return rows.astype(self.dtype)
