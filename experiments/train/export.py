"""Host side: trained parameters as a plain bf16 checkpoint in the published naming, and such a checkpoint read back.

Read next: figures.py.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jaxtyping import PyTree

from checkpoints.naming import EXPERT_PROJECTIONS, language_prefix, read_expert
from checkpoints.store import Store, open_store
from checkpoints.write import write_safetensors
from experiments.demo import sizes, vocabulary
from experiments.demo.template import CHAT_TEMPLATE
from experiments.train.batches import ngram_hash
from experiments.train.lesson import Lesson
from experiments.train.losses import Learner
from experiments.train.run import Trained
from experiments.train.start import PREFIX
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.load import open_ngrams
from fnx_jax.families.flash_next.shards import deal
from fnx_jax.families.flash_next.weights import model_params
from pallas_kernels.expert_matmul import ExpertLines

MODEL_FILE = "model.safetensors"


class _Names:
    """`Leaves` that are the names of the tensors which fill them."""

    def plain(self, name: str, shape: tuple[int, ...], rows: Any = None) -> str:
        return name

    def centred(self, name: str, shape: tuple[int, ...]) -> str:
        return name

    def conv(self, name: str, channels: int, taps: int, rows: Any = None) -> str:
        return name

    def linear(self, prefix: str, outputs: int, inputs: int, columns: Any = None) -> Any:
        return f"{prefix}.weight"

    def experts(self, layer_prefix: str, config: FlashNextConfig, shards: Any) -> tuple[ExpertLines, Any]:
        base = f"{layer_prefix}mlp.experts"
        pools: dict[str, Any] = {"gate": (f"{base}.gate",), "up": (f"{base}.up",), "down": (f"{base}.down_proj",)}
        return ExpertLines(**pools), None


def tensors(trained: Trained, config: FlashNextConfig) -> dict[str, np.ndarray]:
    """bfloat16 tensors by their published names; experts fused, the n-gram table as one shard beside its hash."""
    names = model_params(config, deal(config, 1), _Names(), PREFIX, True)
    pairs = zip(jax.tree.leaves(names), jax.tree.leaves(trained.params), strict=True)
    found = {name: np.asarray(leaf) for name, leaf in pairs}
    for name in [name for name in found if name.endswith("mlp.experts.gate")]:
        base = name.removesuffix(".gate")
        found[f"{base}.gate_up_proj"] = np.concatenate([found.pop(name), found.pop(f"{base}.up")], axis=1)
    found = {name: leaf[:, None] if name.endswith("conv1d.weight") else leaf for name, leaf in found.items()}
    hash_, ple = ngram_hash(config), f"{PREFIX}layers.{config.ngram_layers[0]}.ple.ple_embedding."
    found[f"{ple}ngram_embedding.shard_0.weight"] = np.asarray(trained.table)
    return {name: leaf.astype(ml_dtypes.bfloat16) for name, leaf in sorted(found.items())} | {
        f"{ple}layer_multipliers": hash_.multipliers,
        f"{ple}ngram_heads_vocab_sizes": hash_.sizes,
        f"{ple}ngram_heads_offsets": hash_.offsets,
    }


def write_checkpoint(folder: Path, trained: Trained, lesson: Lesson, shape: sizes.Sizes) -> None:
    """Writes the whole folder: tensors, configuration, tokenizer, template."""
    folder.mkdir(parents=True, exist_ok=True)
    added = vocabulary.added_ids(lesson.tokenizer)
    for name, value in (
        ("config.json", sizes.model_config(shape, added)),
        ("generation_config.json", sizes.generation_config(added)),
        ("tokenizer_config.json", vocabulary.tokenizer_config(lesson.tokenizer, shape.context)),
    ):
        (folder / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")
    lesson.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, "utf-8")
    write_safetensors(folder / MODEL_FILE, tensors(trained, lesson.config), {"format": "pt"})


class _Stored:
    """`Leaves` of a plain checkpoint in float32, as training holds them: without the padding of serving."""

    def __init__(self, store: Store):
        self._store = store

    def plain(self, name: str, shape: tuple[int, ...], rows: Any = None) -> jax.Array:
        return jax.device_put(self._store.read(name).astype(np.float32).reshape(shape))

    def centred(self, name: str, shape: tuple[int, ...]) -> jax.Array:
        return self.plain(name, shape)

    def conv(self, name: str, channels: int, taps: int, rows: Any = None) -> jax.Array:
        return self.plain(name, (channels, taps))

    def linear(self, prefix: str, outputs: int, inputs: int, columns: Any = None) -> jax.Array:
        return self.plain(f"{prefix}.weight", (outputs, inputs))

    def experts(self, layer_prefix: str, config: FlashNextConfig, shards: Any) -> tuple[ExpertLines, Any]:
        pools = []
        for projection in EXPERT_PROJECTIONS:
            lines = [read_expert(self._store, layer_prefix, e, projection) for e in range(config.experts)]
            pools.append((jax.device_put(np.stack(lines).astype(np.float32)),))
        return ExpertLines(*pools), None


def read_checkpoint(folder: Path, config: FlashNextConfig) -> Trained:
    """A plain checkpoint as float32 parameters for the training network.

    Raises: CheckpointError, or ValueError where a tensor is missing or has another size than the config says.
    """
    with open_store(folder) as store:
        params = model_params(config, deal(config, 1), _Stored(store), language_prefix(store), True)
        (table,) = open_ngrams(store, config).tables
        rows = table.lookup(np.arange(table.rows)[:, None])[:, 0].astype(np.float32)
    return Trained(params, jax.device_put(rows))


def learner(trained: Trained) -> Learner:
    """What the network's losses take."""
    return Learner(dataclasses.replace(trained.params, mtp=None), trained.table)


def parameters(tree: PyTree) -> int:
    """Values in a tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
