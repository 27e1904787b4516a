"""Host side: the facts of one published quantization, from a TOML file of `recipes/`. Read next: skeleton.py."""

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from checkpoints.errors import CheckpointError

RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Recipe:
    """How a pack stores the network.

    repository, branch: where it is published. quantization: that part of its config.json. bits: pattern of linear names
    -> bits a weight; the first match counts, and a linear without one is plain. dtypes: pattern of plain tensor names
    -> dtype, likewise. ngram_bits, ngram_layout: of the n-gram table. shards: files that the index names.
    mtp_mixer_file, vision_file: side files, or "" where those tensors are in the last shard. vision_linears,
    vision_bits: EXL3 layers of the vision tower. tensors: in all files together, 0 where that is not known.
    """

    repository: str
    branch: str
    quantization: dict
    bits: dict[str, float]
    dtypes: dict[str, str]
    ngram_bits: int
    ngram_layout: Literal["whole", "shards"]
    shards: int
    mtp_mixer_file: str = ""
    vision_file: str = ""
    vision_linears: int = 0
    vision_bits: float = 0
    tensors: int = 0

    def bits_of(self, linear: str) -> float | None:
        """Returns the width of a linear by its module name, None where it is stored plain."""
        return next((bits for pattern, bits in self.bits.items() if fnmatchcase(linear, pattern)), None)

    def dtype_of(self, tensor: str) -> str:
        """Returns the dtype code of a plain tensor, BF16 where no pattern matches."""
        return next((dtype for pattern, dtype in self.dtypes.items() if fnmatchcase(tensor, pattern)), "BF16")


def recipe_names() -> list[str]:
    """Returns the recipes of this package: file names without `.toml`."""
    return sorted(file.stem for file in RECIPES.glob("*.toml"))


def read_recipe(name: str) -> Recipe:
    """Reads a recipe: one of `recipe_names()`, or a path that ends with `.toml`.

    A file of one's own needs only its [bits]; what else it does not say is unknown, or as in the first published pack.
    Raises: CheckpointError for a name that is neither, and for a file that is no recipe.
    """
    path = Path(name) if name.endswith(".toml") else RECIPES / f"{name}.toml"
    if not name.endswith(".toml") and name not in recipe_names():
        raise CheckpointError(f"no recipe {name!r}; there are: {', '.join(recipe_names())}, or a path to a .toml file")
    try:
        return _recipe(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: no recipe: {type(error).__name__}: {error}") from error


def _recipe(facts: dict) -> Recipe:
    source, files, vision = (facts.get(part, {}) for part in ("source", "files", "vision"))
    table = {"bits": 6, "layout": "whole"} | facts.get("ngram_table", {})
    if not all(isinstance(bits, int | float) for bits in facts["bits"].values()):
        raise ValueError("[bits] must map patterns to numbers")
    if not set(facts.get("dtypes", {}).values()) <= {"BF16", "F16", "F32"}:
        raise ValueError("[dtypes] must map patterns to BF16, F16 or F32")
    if table["layout"] not in ("whole", "shards"):
        raise ValueError(f"[ngram_table] layout {table['layout']!r}, 'whole' or 'shards' was wanted")
    return Recipe(
        repository=source.get("repository", ""),
        branch=source.get("branch", ""),
        quantization={"quant_method": "exl3", "codebook": "mul1"} | facts.get("quantization", {}),
        bits=facts["bits"],
        dtypes=facts.get("dtypes", {}),
        ngram_bits=table["bits"],
        ngram_layout=table["layout"],
        shards=files.get("indexed_shards", 0),
        mtp_mixer_file=files.get("mtp_mixer", ""),
        vision_file=files.get("vision", ""),
        vision_linears=vision.get("linears", 0),
        vision_bits=vision.get("bits", 0),
        tensors=files.get("tensors", 0),
    )
