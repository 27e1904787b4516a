"""Host side: the files of a checkpoint that hold no tensors: configuration, tokenizer, templates, licence, index."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from checkpoints.folder import INDEX
from checkpoints.headers import TensorInfo, read_header
from checkpoints.write import write_json

_NOT_TEXT = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".unfinished")
_LARGEST_BYTES = 64 << 20
_OWN = ("config.json", INDEX, "quantization_config.json")
"""Files that say what the tensors are: every result writes its own, or has none."""


def copy_texts(source: Path, target: Path, but: Sequence[str] = _OWN) -> list[str]:
    """Copies the small files of a folder beside its tensors; returns their names."""
    copied = []
    for file in sorted(source.iterdir()):
        hidden = file.name.startswith(".")
        wanted = file.is_file() and not hidden and file.suffix not in _NOT_TEXT and file.name not in but
        if wanted and file.stat().st_size <= _LARGEST_BYTES:
            shutil.copyfile(file, target / file.name)
            copied.append(file.name)
    return copied


def write_index(folder: Path) -> None:
    """Writes the index of the numbered shards of a folder, from their headers; side files stay out of it."""
    placed: dict[str, TensorInfo] = {}
    for file in sorted(folder.glob("model-*.safetensors")):
        placed |= read_header(file)[0]
    total = sum(info.nbytes for info in placed.values())
    weight_map = {name: placed[name].file.name for name in sorted(placed)}
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def without_quantization(config: Mapping) -> dict:
    """config.json of the same network, stored plain."""
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    if isinstance(text := plain.get("text_config"), dict):
        plain["text_config"] = {key: value for key, value in text.items() if key != "quantization_config"}
    return plain
