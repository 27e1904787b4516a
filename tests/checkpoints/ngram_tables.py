"""Tiny n-gram tables in every layout, for the tests of this folder."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from checkpoints import Store, open_store
from checkpoints.ngram_hash import derive_hash

Changes = dict[str, np.ndarray | None]

PREFIX = "model.language_model.layers.1.ple.ple_embedding."
TABLE = PREFIX + "ngram_embedding."

# Two heads an order, orders 2 and 3: sizes 7, 11, 13, 17.
MULTIPLIERS, SIZES, OFFSETS = derive_hash(64, 1234, 0, 3, 2, 7)
ROWS, DIM, BITS = 48, 16, 3
SPLITS = (20, 28)


def codec_rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = rng.integers(-(2**15), 2**15, (ROWS, 1 + DIM * BITS // 16)).astype(np.int16)
    rows[:, 0] = rng.uniform(0.1, 2, ROWS).astype(np.float16).view(np.int16)
    return rows


def plain_rows(dtype: type = ml_dtypes.bfloat16) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(dtype)


def exl3_tensors(sharded: bool, changes: Changes | None = None) -> dict[str, np.ndarray]:
    """A legal EXL3 table in one tensor or two; a change to None takes a tensor away."""
    bias = np.random.default_rng(2).standard_normal((4, DIM)).astype(np.float16)
    parts: Changes = {
        "layer_multipliers": MULTIPLIERS,
        "head_offsets": OFFSETS,
        "head_vocab_sizes": SIZES,
        "head_bias": bias,
    }
    rows = codec_rows()
    parts |= (
        {"shard_0.trellis": rows[:20].copy(), "shard_1.trellis": rows[20:].copy()} if sharded else {"trellis": rows}
    )
    return {TABLE + name: array for name, array in (parts | (changes or {})).items() if array is not None}


def plain_tensors(
    splits: tuple[int, ...] = SPLITS, dtype: type = ml_dtypes.bfloat16, changes: Changes | None = None
) -> dict[str, np.ndarray]:
    """A legal plain table cut into `splits` rows; a change to None takes a tensor away."""
    parts: Changes = {
        "layer_multipliers": MULTIPLIERS,
        "ngram_heads_offsets": OFFSETS,
        "ngram_heads_vocab_sizes": SIZES,
    }
    pieces = np.split(plain_rows(dtype), np.cumsum(splits)[:-1])
    names = ["weight"] if len(splits) == 1 else [f"shard_{s}.weight" for s in range(len(splits))]
    parts |= {f"ngram_embedding.{name}": piece.copy() for name, piece in zip(names, pieces, strict=True)}
    return {PREFIX + name: array for name, array in (parts | (changes or {})).items() if array is not None}


def stored(
    folder: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None, config: dict | None = None
) -> Store:
    """Writes a checkpoint folder and opens it."""
    save_file(tensors, folder / "model.safetensors", metadata)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return open_store(folder)


def windows(tokens: list[int] | np.ndarray, size: int = 3) -> np.ndarray:
    """The token, then the ones before it, -1 before the start."""
    padded = np.concatenate([np.full(size - 1, -1), np.asarray(tokens)])
    return np.stack([padded[size - 1 - j : len(padded) - j] for j in range(size)], axis=1)
