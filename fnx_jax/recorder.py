"""Host side: writes the leaves of a network as the parts of a prepared checkpoint. Read next: prepared.py."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from checkpoints.errors import CheckpointError
from checkpoints.exl3 import CODEBOOKS
from checkpoints.naming import EXPERT_PROJECTIONS
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.parts import pool_parts
from fnx_jax.families.flash_next.reading import HostWeight, Source
from fnx_jax.families.flash_next.shards import deal
from fnx_jax.families.flash_next.weights import model_params
from fnx_jax.prepared import ARRAYS, part_of, read_part
from pallas_kernels.exl3 import DecodedWeight


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
        found = self._source.experts(layer_prefix, config, range(config.experts))
        for projection, weights in zip(EXPERT_PROJECTIONS, found, strict=True):
            kinds, (pool,), (line,) = pool_parts(weights, 1, (0,))
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


def _nbytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
