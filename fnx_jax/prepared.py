"""Host side: prepared checkpoints: a network's leaves as the running model holds them, in orbax checkpoints.

A layer is one orbax checkpoint of a few large arrays where a pack has thousands of small tensors. Leaves are whole, and
cut for as many devices as load asks for; n-gram tables stay safetensors, since their rows are read one by one. Read
next: families/flash_next/reading.py, opening.py.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from checkpoints.errors import CheckpointError
from checkpoints.exl3 import CODEBOOKS
from checkpoints.naming import EXPERT_PROJECTIONS, MTP_PREFIX
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.parts import pool_parts
from fnx_jax.families.flash_next.reading import Arithmetic, HostWeight, Progress, Source
from fnx_jax.families.flash_next.shards import deal
from fnx_jax.families.flash_next.weights import model_params
from pallas_kernels.exl3 import DecodedWeight, Exl3Weight

FORMAT = 1
ABOUT = "prepared.json"
ARRAYS = "arrays"


@dataclass(frozen=True)
class About:
    """What prepared.json says.

    digest: of the checkpoint that it was made from. prefix: of the text model's names. mtp_layers: of the draft head.
    exact, decode: see Arithmetic. nbytes: of the leaves, by part.
    """

    digest: str
    prefix: str
    mtp_layers: int
    exact: bool
    decode: bool
    nbytes: dict[str, int]


def is_prepared(path: Path) -> bool:
    """Tells a prepared checkpoint from a folder of safetensors files."""
    return (path / ABOUT).is_file()


def read_about(path: Path) -> About:
    """Reads prepared.json. Raises CheckpointError where it is not one of this format."""
    try:
        found = json.loads((path / ABOUT).read_bytes())
        version = found.pop("format")
        if version != FORMAT:
            raise CheckpointError(f"{path / ABOUT}: format {version!r}, this version reads {FORMAT}; prepare it again")
        return About(**found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path / ABOUT}: cannot read: {error}") from error


def part_of(name: str, prefix: str) -> str:
    """The part that a leaf is kept in, by the name it has in files: those of one layer are kept together."""
    if name.startswith(MTP_PREFIX):
        return "draft"
    layer = re.match(re.escape(f"{prefix}layers.") + r"(\d+)\.", name)
    if layer:
        return f"layer-{int(layer[1]):04d}"
    return "embedding" if name.startswith(f"{prefix}embed_tokens.") else "head"


@dataclass
class PreparedSource:
    """Leaves from a prepared checkpoint; the part that was asked for last is in memory."""

    path: Path
    about: About
    progress: Progress
    _part: str = ""
    _leaves: dict[str, Any] = field(default_factory=dict)

    def plain(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        value = self._leaf(name)
        if not isinstance(value, np.ndarray) or value.shape != shape:
            raise CheckpointError(f"{self.path}: {name}: not of the shape {list(shape)} that the config asks for")
        return value

    def linear(self, prefix: str, outputs: int, inputs: int) -> HostWeight:
        value = self._leaf(prefix)
        return value if isinstance(value, np.ndarray) else _weight(value)

    def experts(self, layer_prefix: str, config: FlashNextConfig) -> list[list[HostWeight]]:
        kept, found = self._leaf(f"{layer_prefix}mlp.experts"), []
        for projection in EXPERT_PROJECTIONS:
            own = kept[projection]
            pools, places = sorted(own["pools"].items()), zip(own["pool"], own["line"], strict=True)
            weights = [value if isinstance(value, np.ndarray) else _weight(value) for _, value in pools]
            found.append([jax.tree.map(lambda a, line=line: a[line], weights[pool]) for pool, line in places])
        return found

    def _leaf(self, name: str) -> Any:
        part = part_of(name, self.about.prefix)
        if part != self._part:
            self._leaves = read_part(self.path, part)
            self._part = part
            self.progress(self.about.nbytes.get(part, 0))
        if name not in self._leaves:
            raise CheckpointError(f"{self.path}: {name}: missing from part {part}")
        return self._leaves[name]


def write_parts(
    source: Source,
    config: FlashNextConfig,
    prefix: str,
    folder: Path,
    done: Callable[[str], None] = lambda part: None,
) -> dict[str, int]:
    """Writes the leaves of a network part by part, reads each part back and compares it; returns bytes by part.

    A part that is there is whole, and is only read. done: told of each part that is written.
    Raises: CheckpointError where what is read differs.
    """
    for leftover in (folder / ARRAYS).glob("*.orbax-checkpoint-tmp*"):
        shutil.rmtree(leftover)
    recorder = _Recorder(source, prefix, folder, done)
    model_params(config, deal(config, 1), recorder, prefix, config.mtp_layers > 0)
    recorder.close()
    return recorder.nbytes


def read_part(path: Path, part: str) -> dict[str, Any]:
    """Restores one part as NumPy arrays, by leaf name. Raises CheckpointError where it is not there or broken."""
    folder = path / ARRAYS / part
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: missing")
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            tree = checkpointer.metadata(folder.absolute()).item_metadata.tree  # type: ignore[union-attr]
            wanted = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            return checkpointer.restore(folder.absolute(), args=ocp.args.PyTreeRestore(restore_args=wanted))
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder}: cannot restore: {error}") from error


class _Recorder:
    """A `Leaves` that keeps what it is asked for in files; the tree that it builds holds nothing."""

    def __init__(self, source: Source, prefix: str, folder: Path, done: Callable[[str], None]):
        self._source, self._prefix, self._folder, self._done = source, prefix, folder, done
        self._part, self._found = "", {}
        self._skipped = False
        self.nbytes: dict[str, int] = {}

    def plain(self, name: str, shape: tuple[int, ...], rows: Any = None) -> Any:
        self._keep(name, lambda: self._source.plain(name, shape))

    def centred(self, name: str, shape: tuple[int, ...]) -> Any:
        self._keep(name, lambda: self._source.plain(name, shape))

    def conv(self, name: str, channels: int, taps: int, rows: Any = None) -> Any:
        self._keep(name, lambda: self._source.plain(name, (channels, 1, taps)))

    def linear(self, prefix: str, outputs: int, inputs: int, columns: Any = None) -> Any:
        self._keep(prefix, lambda: _tree(self._source.linear(prefix, outputs, inputs)))

    def experts(self, layer_prefix: str, config: FlashNextConfig, shards: Any) -> Any:
        self._keep(f"{layer_prefix}mlp.experts", lambda: self._pools(layer_prefix, config))
        return None, None

    def close(self) -> None:
        """Writes the last part."""
        if self._part and not self._skipped:
            self._write()
        if self._part:
            self._done(self._part)

    def _pools(self, layer_prefix: str, config: FlashNextConfig) -> dict[str, Any]:
        kept = {}
        for projection, weights in zip(EXPERT_PROJECTIONS, self._source.experts(layer_prefix, config), strict=True):
            kinds, (pool,), (line,) = pool_parts(weights, 1)
            pools = {f"{number:02d}": _tree(parts[0]) for number, parts in enumerate(kinds)}
            kept[projection] = {"pools": pools, "pool": pool, "line": line}
        return kept

    def _keep(self, name: str, value: Callable[[], Any]) -> None:
        part = part_of(name, self._prefix)
        if part != self._part:
            self.close()
            self._part, self._found = part, {}
            self._skipped = (self._folder / ARRAYS / part).exists()
            if self._skipped:
                self.nbytes[part] = _nbytes(read_part(self._folder, part))
        if not self._skipped:
            self._found[name] = value()

    def _write(self) -> None:
        folder = (self._folder / ARRAYS / self._part).absolute()
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(folder, args=ocp.args.PyTreeSave(self._found))
        found = read_part(self._folder, self._part)
        same = jax.tree.map(lambda a, b: a.dtype == b.dtype and a.tobytes() == b.tobytes(), found, self._found)
        if not all(jax.tree.leaves(same)):
            raise CheckpointError(f"{folder}: what was written reads differently")
        self.nbytes[self._part] = _nbytes(found)


def _tree(weight: HostWeight) -> Any:
    """A weight as a dict of arrays; the codebook of a packed one by its number."""
    if isinstance(weight, np.ndarray):
        return weight
    kept = {"suh": np.asarray(weight.suh), "svh": np.asarray(weight.svh)}
    if weight.bias is not None:
        kept["bias"] = np.asarray(weight.bias)
    if isinstance(weight, DecodedWeight):
        return kept | {"wq": np.asarray(weight.wq)}
    return kept | {
        "words": np.asarray(weight.words),
        "codebook": np.array([CODEBOOKS.index(weight.codebook)], np.int32),
    }


def _weight(kept: dict[str, np.ndarray]) -> Exl3Weight | DecodedWeight:
    rest: dict[str, Any] = {"suh": kept["suh"], "svh": kept["svh"], "bias": kept.get("bias")}
    if "wq" in kept:
        return DecodedWeight(wq=kept["wq"], **rest)
    return Exl3Weight(words=kept["words"], codebook=CODEBOOKS[int(kept["codebook"][0])], **rest)


def _nbytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def require_arithmetic(path: Path, about: About, arithmetic: Arithmetic) -> None:
    """Raises CheckpointError where a checkpoint was prepared for another kind of device or another dtype."""
    for what, found, wanted in (
        ("dtype float32", about.exact, arithmetic.exact),
        ("devices that decode weights at load", about.decode, arithmetic.decode),
    ):
        if found != wanted:
            raise CheckpointError(f"{path}: prepared {'for' if found else 'not for'} {what}; prepare it again")
