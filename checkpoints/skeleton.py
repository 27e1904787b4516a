"""Writes a sparse pack: all names, shapes and sizes of a published one, and no weights.

    python -m checkpoints.skeleton OUT [--recipe=flash_next_4.05]

Codebook markers and hash constants hold their values; everything else is holes, which take no room on disk and read as
zeros. For trying loaders, planners and inventories at full size. Host side. Read next: sparse.py, recipe.py.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from absl import flags

from checkpoints.architecture import Experts, Linear, Plain, Table, parts
from checkpoints.commands import UsageError, one_path, run
from checkpoints.exl3 import BLOCK, MARKERS, TILE
from checkpoints.folder import INDEX
from checkpoints.full_size import full_config, generation_config
from checkpoints.naming import MTP_PREFIX, PUBLISHED_PREFIX, positive_int, text_config
from checkpoints.ngram_parts import CODEC_FORMAT
from checkpoints.recipe import Recipe, read_recipe
from checkpoints.sparse import Outline, write_sparse

FLAGS = flags.FlagValues()
flags.DEFINE_string("recipe", "flash_next_4.05", "which published pack to outline: a file of recipes/", flag_values=FLAGS)

NGRAM_FILE = "ngram_embedding.safetensors"
_SHARD_BYTES = 8 << 30
_VISION_SHAPES = ((1152, 1152), (1152, 1152), (1152, 1152), (1152, 1152), (4352, 1152), (1152, 4352))


def write_skeleton(folder: Path, config: dict, recipe: Recipe) -> dict[str, int]:
    """Writes a pack of a network with the forms of a recipe.

    Args:
      folder: an empty folder, or one to make. config: as in config.json; its quantization part comes from the recipe.
    Returns: apparent bytes by file name.
    Raises: UsageError where the folder is not empty; CheckpointError for a config that makes no network.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: an empty or a new folder was wanted")
    pack = outline_pack(config, recipe)
    folder.mkdir(parents=True, exist_ok=True)
    for name, outlines in pack.items():
        write_sparse(folder / name, outlines, _table_metadata(outlines) if name == NGRAM_FILE else {"format": "pt"})
    indexed = {name: outlines for name, outlines in pack.items() if name.startswith("model-")}
    _write_json(folder / INDEX, _index(indexed))
    _write_json(folder / "config.json", config | {"quantization_config": recipe.quantization})
    _write_json(folder / "generation_config.json", generation_config())
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir())}


def outline_pack(config: dict, recipe: Recipe) -> dict[str, list[Outline]]:
    """Returns a pack's tensors by file name: numbered shards, then the side files."""
    text = text_config(config)
    network = list(parts(text, PUBLISHED_PREFIX, positive_int({"n": 0} | text, "mtp_num_hidden_layers", 1)))
    body = [outline for part in network for outline in _outlines(part, recipe)]
    table = [outline for part in network if isinstance(part, Table) for outline in _table(part, recipe)]
    vision = _vision(recipe, len(body) + len(table))
    mixer = [outline for outline in body if outline.name.startswith(f"{MTP_PREFIX}hyper_connection_mixer.")]
    side = {recipe.vision_file: vision, recipe.mtp_mixer_file: mixer}
    if recipe.mtp_mixer_file:
        body = [outline for outline in body if outline not in mixer]
    if not recipe.vision_file:
        body += vision
    files = {NGRAM_FILE: table} | {name: outlines for name, outlines in side.items() if name}
    return _shards(body, recipe.shards) | {name: outlines for name, outlines in files.items() if outlines}


def _outlines(part: Linear | Plain | Experts | Table, recipe: Recipe) -> Iterator[Outline]:
    match part:
        case Plain():
            yield Outline(part.name, recipe.dtype_of(part.name), part.shape)
        case Linear():
            bits = recipe.bits_of(part.name)
            if bits is None:
                yield Outline(f"{part.name}.weight", recipe.dtype_of(f"{part.name}.weight"), part.shape)
            else:
                yield from _exl3(part, bits, recipe)
        case Experts():
            for linear in part.linears():
                yield from _outlines(linear, recipe)


def _exl3(part: Linear, bits: float, recipe: Recipe) -> Iterator[Outline]:
    """An EXL3 layer; both sizes are padded to whole blocks."""
    outputs, inputs = (-(-size // BLOCK) * BLOCK for size in part.shape)
    yield Outline(f"{part.name}.trellis", "I16", (inputs // TILE, outputs // TILE, int(TILE * bits)))
    yield Outline(f"{part.name}.suh", "F16", (inputs,))
    yield Outline(f"{part.name}.svh", "F16", (outputs,))
    if (codebook := recipe.quantization["codebook"]) in MARKERS:
        yield Outline(f"{part.name}.{codebook}", "I32", (), np.uint32(MARKERS[codebook]))


def _table(part: Table, recipe: Recipe) -> Iterator[Outline]:
    module, words = f"{part.prefix}ngram_embedding.", 1 + part.row_dim * recipe.ngram_bits // 16
    if recipe.ngram_layout == "whole":
        yield Outline(f"{module}trellis", "I16", (part.rows, words))
    else:
        for shard in range(part.shards):
            yield Outline(f"{module}shard_{shard}.trellis", "I16", (part.rows // part.shards, words))
    yield Outline(f"{module}head_bias", "F16", (len(part.sizes), part.row_dim))
    for name, values in (
        ("head_offsets", part.offsets),
        ("head_vocab_sizes", part.sizes),
        ("layer_multipliers", part.multipliers),
    ):
        yield Outline(f"{module}{name}", "I64", (len(values),), np.array(values, np.int64))
