"""Writes a sparse pack: all names, shapes and sizes of a published one, and no weights.

    python -m checkpoints.skeleton OUT [--recipe=flash_next_4.05]

Codebook markers and hash constants hold their values; everything else is holes, which take no room on disk and read as
zeros. It is for trying loaders, planners and inventories at full size. Host side. Read next: outlines.py, recipe.py.
"""

import json
from pathlib import Path

from absl import flags

from checkpoints.commands import UsageError, one_path, run
from checkpoints.folder import INDEX
from checkpoints.full_size import full_config, generation_config
from checkpoints.outlines import NGRAM_FILE, outline_pack, table_metadata
from checkpoints.recipe import Recipe, read_recipe, recipe_names
from checkpoints.sparse import Outline, write_sparse

FLAGS = flags.FlagValues()
RECIPE = flags.DEFINE_enum("recipe", "flash_next_4.05", recipe_names(), "published pack to outline", flag_values=FLAGS)


def write_skeleton(folder: Path, config: dict, recipe: Recipe) -> dict[str, int]:
    """Writes a pack of a network in the forms of a recipe.

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
        metadata = table_metadata(outlines, recipe) if name == NGRAM_FILE else {"format": "pt"}
        write_sparse(folder / name, outlines, metadata)
    _write_json(folder / INDEX, _index(pack))
    _write_json(folder / "config.json", config | {"quantization_config": recipe.quantization})
    _write_json(folder / "generation_config.json", generation_config())
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir())}


def main(positional: list[str]) -> None:
    """Writes the full-size skeleton and prints its files."""
    folder = Path(one_path(positional, "folder to write"))
    try:
        sizes = write_skeleton(folder, full_config(), read_recipe(RECIPE.value))
    except OSError as error:
        raise UsageError(f"{folder}: cannot write there: {error.strerror}") from error
    for name, size in sizes.items():
        print(f"{size:>17,}  {name}")
    print(f"{sum(sizes.values()):>17,}  bytes in {folder}, nearly all of them holes")


def _index(pack: dict[str, list[Outline]]) -> dict:
    """Names the numbered shards alone, as published packs do."""
    shards = {name: outlines for name, outlines in pack.items() if name.startswith("model-")}
    total = sum(outline.nbytes for outlines in shards.values() for outline in outlines)
    weight_map = {outline.name: name for name, outlines in shards.items() for outline in outlines}
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(main, FLAGS)
