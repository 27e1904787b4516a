"""Small packs of every form, without weights, and a way to change one tensor of them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from checkpoints import open_store
from checkpoints.commands import DEMO
from checkpoints.folder import INDEX
from checkpoints.recipe import Recipe, read_recipe
from checkpoints.skeleton import write_skeleton
from checkpoints.write import write_safetensors

LAYER = "model.language_model.layers.0."
EXPERT = f"{LAYER}mlp.experts.1.up_proj"
NGRAM = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding."
CONFIG = {
    "model_type": "qwen4_exp",
    "architectures": ["Qwen4ExpForConditionalGeneration"],
    "text_config": {
        "model_type": "qwen4_exp_text",
        "vocab_size": 128,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
        "hc_count": 4,
        "hc_lowrank": 8,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "ple_layer_ids": [2],
        "ple_embed_dim": 128,
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": 4,
        "ngram_vocab_size_base": 100,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 4,
        "mtp_num_hidden_layers": 1,
    },
}


def recipe(**changes: object) -> Recipe:
    """The 4.05 recipe cut down to two shards and two vision layers."""
    small = {
        "shards": 2,
        "vision_linears": 2,
        "tensors": 0,
        "quantization": {"quant_method": "exl3", "codebook": "mul1"},
    }
    return replace(read_recipe("flash_next_4.05"), **(small | changes))


def make_pack(folder: Path, config: dict = CONFIG, indexed: bool = False, **changes: object) -> Path:
    """Writes a pack; without its index by default, so that the headers of changed files can be told apart from it."""
    write_skeleton(folder, config, recipe(**changes))
    if not indexed:
        (folder / INDEX).unlink()
    return folder


def change(folder: Path, edit: Callable[[dict[str, np.ndarray]], object], having: str) -> None:
    """Rewrites the file that holds the tensor `having` after `edit` has changed its tensors."""
    with open_store(folder) as store:
        file = store.info(having).file
        metadata = store.metadata(file.name)
        tensors = {name: store.read(name) for name in store.names() if store.info(name).file == file}
    edit(tensors)
    write_safetensors(file, tensors, metadata)


def put(folder: Path, name: str, array: np.ndarray, beside: str = f"{LAYER}linear_attn.A_log") -> None:
    """Adds or replaces one tensor in the file that holds `name` already, or else in that of `beside`."""
    with open_store(folder) as store:
        having = name if name in store else beside
    change(folder, lambda tensors: tensors.update({name: array}), having)


def drop(folder: Path, *names: str) -> None:
    """Takes tensors away."""
    for name in names:
        change(folder, lambda tensors, name=name: tensors.pop(name), name)


def edit_config(folder: Path, edit: Callable[[dict], object]) -> None:
    """Rewrites config.json."""
    config = json.loads((folder / "config.json").read_text())
    edit(config)
    (folder / "config.json").write_text(json.dumps(config))


def first_layers(folder: Path, layers: int = 2) -> Path:
    """The first layers of the embedded checkpoint, without a draft head; the first one alone has no n-gram table."""
    prefix = "model.language_model.layers."
    with open_store(DEMO) as store:
        gone = tuple(f"{prefix}{i}." for i in range(layers, store.config["text_config"]["num_hidden_layers"]))
        names = [name for name in store.names() if not name.startswith((*gone, "mtp."))]
        table = [name for name in names if ".ngram_embedding." in name]
        folder.mkdir(parents=True)
        body = {name: store.read(name) for name in names if name not in table}
        write_safetensors(folder / "model.safetensors", body, {"format": "pt"})
        if table:
            rows, metadata = {n: store.read(n) for n in table}, store.metadata(store.info(table[0]).file.name)
            write_safetensors(folder / "ngram_embedding.safetensors", rows, metadata)
        assert store.config is not None
        text = store.config["text_config"]
        text |= {"num_hidden_layers": layers, "layer_types": text["layer_types"][:layers], "mtp_num_hidden_layers": 0}
        text["ple_layer_ids"] = [layer for layer in text["ple_layer_ids"] if layer <= layers]
        text.pop("mtp")
        (folder / "config.json").write_text(json.dumps(store.config | {"text_config": text}))
    shutil.copyfile(DEMO / "tokenizer.json", folder / "tokenizer.json")
    return folder
