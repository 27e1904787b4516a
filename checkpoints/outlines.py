"""Host side: the tensors of a pack that stores a network as a recipe says, file by file, without weights.

Read next: architecture.py (the network), recipe.py (the forms), sparse.py (how they are written).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from checkpoints.architecture import Experts, Linear, Part, Plain, Table, configured_mtp_layers, parts
from checkpoints.exl3 import BLOCK, MARKERS, TILE
from checkpoints.naming import MTP_PREFIX, PUBLISHED_PREFIX, text_config
from checkpoints.recipe import Recipe
from checkpoints.sparse import Outline
from checkpoints.write import Entry

NGRAM_FILE = "ngram_embedding.safetensors"
_MIXER_PREFIX = f"{MTP_PREFIX}hyper_connection_mixer."
_SHARD_BYTES = 8 << 30
_VISION_LINEARS = ((1152, 1152), (1152, 1152), (1152, 1152), (1152, 1152), (4304, 1152), (1152, 4304))
_PARTS_OF_VISION_LINEAR = 5


def outline_pack(config: dict, recipe: Recipe) -> dict[str, list[Outline]]:
    """Returns a pack's tensors by file name: numbered shards, then the side files that have any.

    The vision tower has the recipe's EXL3 layers under placeholder names, and as many plain tensors as its total asks
    for.
    Raises: CheckpointError for a config that makes no network.
    """
    text = text_config(config)
    network = list(parts(text, PUBLISHED_PREFIX, configured_mtp_layers(text)))
    body = [outline for part in network for outline in _outlines(part, recipe)]
    table = [outline for part in network if isinstance(part, Table) for outline in _table(part, recipe)]
    vision = list(_vision(recipe, len(body) + len(table)))
    side = {NGRAM_FILE: table}
    if recipe.mtp_mixer_file:
        side[recipe.mtp_mixer_file] = [outline for outline in body if outline.name.startswith(_MIXER_PREFIX)]
        body = [outline for outline in body if not outline.name.startswith(_MIXER_PREFIX)]
    if recipe.vision_file:
        side[recipe.vision_file] = vision
    else:
        body += vision
    return _shards(body, recipe.shards) | {name: outlines for name, outlines in side.items() if outlines}


def table_metadata(outlines: Sequence[Outline | Entry], recipe: Recipe) -> dict[str, str]:
    """Returns what the file of an n-gram table says about itself."""
    shards = [outline for outline in outlines if outline.name.endswith("trellis")]
    row_dim = next(outline.shape[1] for outline in outlines if outline.name.endswith("head_bias"))
    rows = str(sum(shard.shape[0] for shard in shards))
    sharded = {"shard_rows": str(shards[0].shape[0])} if len(shards) > 1 else {}
    codec = {"format": "exl3_ngram_trellis", "version": "1", "K": str(recipe.ngram_bits), "codebook": "mul1"}
    return codec | {"row_dim": str(row_dim), "rows": rows} | sharded


def _outlines(part: Part, recipe: Recipe) -> Iterator[Outline]:
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
    """An EXL3 layer; writers pad both sizes to whole blocks."""
    outputs, inputs = (-(-size // BLOCK) * BLOCK for size in part.shape)
    yield Outline(f"{part.name}.trellis", "I16", (inputs // TILE, outputs // TILE, int(TILE * bits)))
    yield Outline(f"{part.name}.suh", "F16", (inputs,))
    yield Outline(f"{part.name}.svh", "F16", (outputs,))
    if (codebook := recipe.quantization["codebook"]) in MARKERS:
        yield Outline(f"{part.name}.{codebook}", "I32", (), np.array(MARKERS[codebook], np.uint32))


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


def _vision(recipe: Recipe, others: int) -> Iterator[Outline]:
    """EXL3 layers with biases, then plain vectors until the pack has the recipe's number of tensors."""
    for i in range(recipe.vision_linears):
        linear = Linear(f"model.visual.placeholder_{i}", _VISION_LINEARS[i % len(_VISION_LINEARS)])
        outlines = list(_exl3(linear, recipe.vision_bits, recipe))
        outputs = next(outline.shape for outline in outlines if outline.name.endswith(".svh"))
        yield from [*outlines, Outline(f"{linear.name}.bias", "F16", outputs)]
    plain = recipe.tensors - others - recipe.vision_linears * _PARTS_OF_VISION_LINEAR
    for i in range(recipe.vision_linears, recipe.vision_linears + plain):
        yield Outline(f"model.visual.placeholder_{i}.weight", "F16", (_VISION_LINEARS[0][0],))


def _shards(body: list[Outline], count: int) -> dict[str, list[Outline]]:
    """Cuts a list into files of about equal bytes, in order; without a count, of about _SHARD_BYTES."""
    sizes = np.array([outline.nbytes for outline in body], np.int64)
    count = count or -(-int(sizes.sum()) // _SHARD_BYTES)
    shard_of = np.minimum((np.cumsum(sizes) - sizes) * count // max(int(sizes.sum()), 1), count - 1)
    files: dict[str, list[Outline]] = {}
    for outline, shard in zip(body, shard_of.tolist(), strict=True):
        files.setdefault(f"model-{shard + 1:05d}-of-{count:05d}.safetensors", []).append(outline)
    return files
