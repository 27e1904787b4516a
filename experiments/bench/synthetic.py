"""Host side: writes a random bfloat16 checkpoint of the published shape, small enough for a bench on a few cores.

Widths keep the proportions of the published model at a quarter of its hidden size; rows and experts meet as often as
there, about one row an expert in a decode batch. Read next: exactness.py.
"""

import json
from pathlib import Path
from zlib import crc32

import ml_dtypes
import numpy as np

from checkpoints.architecture import Experts, Linear, Plain, Table, parts
from checkpoints.naming import TRANSFORMERS_PREFIX
from checkpoints.write import write_safetensors
from experiments.demo.sizes import Sizes, text_config

BF16 = ml_dtypes.bfloat16
SIZES = Sizes(
    vocabulary=8192,
    hidden=640,
    stream_rank=80,
    layers=4,
    heads=12,
    kv_heads=2,
    head_size=128,
    index_heads=4,
    index_size=64,
    index_budget=512,
    delta_key_heads=4,
    delta_value_heads=12,
    delta_size=128,
    experts=64,
    active_experts=4,
    expert_ffn=192,
    shared_ffn=192,
    ngram_hidden=640,
)
"""The bench's model."""


def write_checkpoint(folder: Path, sizes: Sizes = SIZES, seed: int = 0) -> Path:
    """Writes config.json and one file of weights, without a draft head. Returns the folder."""
    text = text_config(sizes, sizes.vocabulary - 1) | {"mtp_num_hidden_layers": 0}
    (folder / "config.json").write_text(json.dumps(text))
    tensors: dict[str, np.ndarray] = {}
    for part in parts(text, TRANSFORMERS_PREFIX, 0):
        tensors |= _drawn(part, seed)
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def _drawn(part: Linear | Plain | Experts | Table, seed: int) -> dict[str, np.ndarray]:
    match part:
        case Linear(name, shape):
            return {f"{name}.weight": _values(name, shape, shape[1] ** -0.5, seed)}
        case Plain(name, shape):
            around = 1.0 if name.endswith("linear_attn.norm.weight") else 0.0
            wide = 1.0 if "embed_tokens" in name else 0.1
            return {name: (around + _values(name, shape, wide, seed).astype(np.float32)).astype(BF16)}
        case Experts():
            base, inner = f"{part.prefix}mlp.experts.", (part.count, 2 * part.ffn, part.hidden)
            return {
                f"{base}gate_up_proj": _values(base, inner, part.hidden**-0.5, seed),
                f"{base}down_proj": _values(base, (part.count, part.hidden, part.ffn), part.ffn**-0.5, seed),
            }
        case Table():
            rows = _values(part.prefix, (part.rows, part.row_dim), 1.0, seed)
            return {
                f"{part.prefix}ngram_embedding.shard_0.weight": rows,
                f"{part.prefix}layer_multipliers": np.array(part.multipliers, np.int64),
                f"{part.prefix}ngram_heads_vocab_sizes": np.array(part.sizes, np.int64),
                f"{part.prefix}ngram_heads_offsets": np.array(part.offsets, np.int64),
            }


def _values(name: str, shape: tuple[int, ...], scale: float, seed: int) -> np.ndarray:
    """Uniform values of mean 0 and standard deviation `scale`."""
    rng = np.random.default_rng([seed, crc32(name.encode())])
    return ((rng.random(shape, np.float32) - np.float32(0.5)) * np.float32(12**0.5 * scale)).astype(BF16)
