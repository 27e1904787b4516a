"""Host side: writes a trial as a checkpoint: config.json and one file of random weights, EXL3 or plain.

Every tensor has a stream of its own, named by the tensor. Scales are such that logits spread, routers choose unlike
experts and indexers unlike blocks. Read next: checks.py.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import ml_dtypes
import numpy as np

from checkpoints.architecture import Experts, Linear, Plain, Table, parts
from checkpoints.naming import PUBLISHED_PREFIX, TRANSFORMERS_PREFIX
from checkpoints.write import write_safetensors
from experiments.prove.search.random_linear import random_linear
from experiments.prove.search.trials import BITS, Trial

GAINS = {
    "lm_head": 4.0,
    "mlp.gate": 4.0,
    "block_inject": 2.0,
    "input_mix_weight_down": 3.0,
    "input_mix_weight_up": 2.0,
    "in_proj": 1.5,
    "q_proj": 1.5,
    "k_proj": 1.5,
    "index_qk_proj": 1.5,
    "out_proj": 2.0,
    "o_proj": 2.0,
    "down_proj": 2.0,
    "shared_expert_gate": 2.0,
    "key_proj": 2.0,
    "value_proj": 1.5,
}
"""Standard deviation of a linear map times sqrt(fan in); 1 for any other."""
STAYS_PLAIN = ("mlp.gate", "shared_expert_gate", "hyper_connection", "in_proj_a", "in_proj_b", ".ple.")
"""Maps that packs leave as they are."""
Tensors = Iterator[tuple[str, np.ndarray]]


def write_trial(folder: Path, trial: Trial) -> None:
    """Writes config.json and model.safetensors into an existing folder."""
    model_type = "qwen4_exp" if trial.published else trial.text["model_type"]
    config = {"model_type": model_type, "text_config": trial.text} if trial.published else dict(trial.text)
    if trial.form == "exl3":
        config["quantization_config"] = {"quant_method": "exl3", "codebook": "mul1"}
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True))
    write_safetensors(folder / "model.safetensors", dict(_tensors(trial)), {"format": "pt"})


def _tensors(trial: Trial) -> Tensors:
    prefix = PUBLISHED_PREFIX if trial.published else TRANSFORMERS_PREFIX
    dtype = np.dtype(ml_dtypes.bfloat16) if trial.form == "bf16" else np.dtype(np.float16)
    for part in parts(trial.text, prefix, trial.text["mtp_num_hidden_layers"]):
        match part:
            case Plain():
                yield part.name, _plain(trial, part).astype(dtype)
            case Linear():
                yield from _linear(trial, part, dtype)
            case Experts():
                yield from _experts(trial, part, dtype)
            case Table():
                yield from _table(trial, part, dtype)


def _rng(trial: Trial, name: str) -> np.random.Generator:
    return trial.rng(crc32(name.encode()))


def _plain(trial: Trial, part: Plain) -> np.ndarray:
    rng, name = _rng(trial, part.name), part.name
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.05, 3.0, part.shape))
    if name.endswith("dt_bias"):
        return rng.normal(-1.0, 0.7, part.shape)
    if name.endswith("linear_attn.norm.weight"):
        return rng.normal(1.0, 0.2, part.shape)
    if "conv1d" in name:
        return rng.normal(0.0, 0.5, part.shape)
    if "embed_tokens" in name:
        return rng.normal(0.0, 1.0, part.shape)
    return np.clip(rng.normal(0.0, 0.2, part.shape), -0.45, 0.45)  # a norm, which readers want around zero


def _gain(name: str) -> float:
    return next((gain for part, gain in GAINS.items() if part in name), 1.0)


def _matrix(trial: Trial, part: Linear) -> np.ndarray:
    outputs, inputs = part.shape
    return _rng(trial, part.name).normal(0.0, _gain(part.name) / np.sqrt(inputs), (outputs, inputs))


def _linear(trial: Trial, part: Linear, dtype: np.dtype) -> Tensors:
    if trial.form != "exl3" or any(word in part.name for word in STAYS_PLAIN):
        yield f"{part.name}.weight", _matrix(trial, part).astype(dtype)
        return
    rng, (outputs, inputs) = _rng(trial, part.name), part.shape
    bits = BITS[int(rng.integers(len(BITS)))]
    for ending, array in random_linear(rng, inputs, outputs, bits, _gain(part.name)).items():
        yield f"{part.name}.{ending}", array


def _experts(trial: Trial, part: Experts, dtype: np.dtype) -> Tensors:
    if trial.form == "exl3" or not trial.published:
        for linear in part.linears():
            yield from _linear(trial, linear, dtype)
        return
    projections = [_matrix(trial, linear).astype(dtype) for linear in part.linears()]
    fused = [np.concatenate(pair) for pair in zip(projections[0::3], projections[1::3], strict=True)]
    yield f"{part.prefix}mlp.experts.gate_up_proj", np.stack(fused)
    yield f"{part.prefix}mlp.experts.down_proj", np.stack(projections[2::3])


def _table(trial: Trial, part: Table, dtype: np.dtype) -> Tensors:
    rows = _rng(trial, part.prefix).normal(0.0, 1.0, (part.rows, part.row_dim)).astype(dtype)
    for shard, values in enumerate(np.split(rows, part.shards)):
        yield f"{part.prefix}ngram_embedding.shard_{shard}.weight", values
    yield f"{part.prefix}layer_multipliers", np.array(part.multipliers, np.int64)
    yield f"{part.prefix}ngram_heads_vocab_sizes", np.array(part.sizes, np.int64)
    yield f"{part.prefix}ngram_heads_offsets", np.array(part.offsets, np.int64)
