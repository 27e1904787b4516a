"""Host side: fills the parameter tree from a store, leaf by leaf, and leaves nothing behind where a leaf fails."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from checkpoints import exl3
from checkpoints.errors import CheckpointError
from checkpoints.inventory import Inventory
from checkpoints.naming import (
    EXPERT_PROJECTIONS,
    MTP_PREFIX,
    expert_layout,
    expert_prefix,
    language_prefix,
    names_under,
    read_expert,
)
from checkpoints.ngram import open_ngram_table
from checkpoints.store import Store
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.ngram_embedding import NgramTables
from fnx_jax.families.flash_next.outlines import exl3_outline, plain_outline
from fnx_jax.families.flash_next.params import ModelParams
from fnx_jax.families.flash_next.parts import exl3_parts, plain_parts, pool_parts
from fnx_jax.families.flash_next.shards import Columns, Shards
from fnx_jax.families.flash_next.weights import model_params
from fnx_jax.mesh import own_ranks, place_dealt
from pallas_kernels.dense_matmul import Selected, Weight
from pallas_kernels.exl3 import DecodedWeight, Exl3Weight, trellis
from pallas_kernels.expert_matmul import ExpertLines, LineMap

Progress = Callable[[int], None]
"""Told the file bytes of each leaf that is done."""


@dataclass(frozen=True)
class Arithmetic:
    """exact: operands and caches stay float32. decode: EXL3 trellises are decoded at load, where no kernel does."""

    exact: bool
    decode: bool


@dataclass
class StoreLeaves:
    """Leaves from a checkpoint, placed on a mesh; each rank gets its own part. `placed` lists what a failure frees."""

    store: Store
    mesh: Mesh
    arithmetic: Arithmetic
    progress: Progress
    placed: list[jax.Array] = field(default_factory=list)

    def plain(self, name: str, shape: tuple[int, ...], rows: Columns | None = None) -> jax.Array:
        return self._place_rows(self._read(name, shape), rows)

    def centred(self, name: str, shape: tuple[int, ...]) -> jax.Array:
        value = self._read(name, shape)
        mean = float(np.mean(value.astype(np.float32)))
        # A weight stored around one would be applied as two.
        if not abs(mean) < 0.5:
            raise CheckpointError(
                f"{self.store.info(name).where}: mean {mean:.3f}, but this norm is stored around zero"
            )
        return self._place([value])

    def conv(self, name: str, channels: int, taps: int, rows: Columns | None = None) -> jax.Array:
        return self._place_rows(self._read(name, (channels, 1, taps)).reshape(channels, taps), rows)

    def linear(self, prefix: str, outputs: int, inputs: int, columns: Columns | None = None) -> Weight:
        if not exl3.is_linear(self.store, prefix):
            value = self._read(prefix + ".weight", (outputs, inputs))
            return self._place([value] if columns is None else plain_parts(value, columns))
        whole = self._exl3(prefix)
        parts, places = ([whole], None) if columns is None else exl3_parts(whole, columns)
        weight = self._place_trees(parts)
        return weight if places is None else Selected(weight=weight, columns=self._place(places))

    def experts(self, layer_prefix: str, config: FlashNextConfig, shards: Shards) -> tuple[ExpertLines, LineMap]:
        packed = expert_layout(self.store, layer_prefix) == "exl3"
        own, share = own_ranks(self.mesh), config.experts // shards.ranks
        pools, pool_of, line_of = [], [], []
        for projection in EXPERT_PROJECTIONS:
            weights = [
                self._expert(layer_prefix, expert, projection, packed, expert // share in own)
                for expert in range(config.experts)
            ]
            kinds, pool, line = pool_parts(weights, shards.ranks, own)
            pools.append(tuple(self._place_trees(parts) for parts in kinds))
            pool_of.append(pool)
            line_of.append(line)
        line_map = LineMap(
            pool_PE=self._place([np.stack(parts) for parts in zip(*pool_of, strict=True)]),
            line_PE=self._place([np.stack(parts) for parts in zip(*line_of, strict=True)]),
        )
        return ExpertLines(gate=pools[0], up=pools[1], down=pools[2]), line_map

    def free(self) -> None:
        """Deletes everything placed so far."""
        for array in self.placed:
            array.delete()
        self.placed.clear()

    def _read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name not in self.store:
            raise CheckpointError(f"{self.store.path}: {name}: missing")
        info = self.store.info(name)
        if info.shape != shape:
            raise CheckpointError(f"{info.where}: shape {list(info.shape)}, but the config asks for {list(shape)}")
        value = self.store.read(name)
        self.progress(info.nbytes)
        return value.astype(np.float32) if self.arithmetic.exact else value

    def _expert(self, layer_prefix: str, expert: int, projection: str, packed: bool, own: bool) -> Any:
        """One projection of one expert; only its outline where another process holds it."""
        prefix = expert_prefix(layer_prefix, expert, projection)
        if not own:
            decoded = self._decoded_dtype if self.arithmetic.decode else None
            return (
                exl3_outline(self.store, prefix, decoded)
                if packed
                else plain_outline(self.store, layer_prefix, expert, projection, self.arithmetic.exact)
            )
        if packed:
            return self._exl3(prefix)
        value = read_expert(self.store, layer_prefix, expert, projection)
        self.progress(value.nbytes)
        return value.astype(np.float32) if self.arithmetic.exact else value

    def _exl3(self, prefix: str) -> Exl3Weight | DecodedWeight:
        weight = exl3.read_linear(self.store, prefix)
        self.progress(sum(self.store.info(name).nbytes for name in names_under(self.store, prefix + ".")))
        if not self.arithmetic.decode:
            return weight
        return trellis.decoded(weight, self._decoded_dtype)

    @property
    def _decoded_dtype(self) -> type[np.floating]:
        return np.float32 if self.arithmetic.exact else np.float16

    def _place(self, parts: Sequence[np.ndarray]) -> jax.Array:
        array = place_dealt(parts, self.mesh)
        self.placed.append(array)
        return array

    def _place_rows(self, value: np.ndarray, rows: Columns | None) -> jax.Array:
        return self._place([value] if rows is None else [value[wanted] for wanted in rows])

    def _place_trees(self, parts: Sequence[Any]) -> Any:
        return jax.tree.map(lambda *leaves: self._place(leaves), *parts)


def load_params(
    store: Store,
    config: FlashNextConfig,
    shards: Shards,
    mesh: Mesh,
    arithmetic: Arithmetic,
    with_mtp: bool,
    progress: Progress = lambda nbytes: None,
) -> ModelParams:
    """Reads every parameter once and places each rank's part. Raises CheckpointError by name; nothing stays then."""
    leaves = StoreLeaves(store, mesh, arithmetic, progress)
    try:
        return model_params(config, shards, leaves, language_prefix(store), with_mtp)
    except BaseException:
        leaves.free()
        raise


def parameter_bytes(store: Store, inventory: Inventory, with_mtp: bool) -> int:
    """Returns the file bytes of which `load_params` tells: all but n-gram tables and a draft head that is left out."""
    unread = (*(table.prefix for table in inventory.tables), *(() if with_mtp else (MTP_PREFIX,)))
    return sum(store.info(name).nbytes for name in inventory.tensors if not name.startswith(unread))


def open_ngrams(store: Store, config: FlashNextConfig) -> NgramTables:
    """Opens the table of every n-gram layer; rows are read when they are needed."""
    prefix = language_prefix(store)
    names = [f"{prefix}layers.{layer}.ple.ple_embedding." for layer in config.ngram_layers]
    eos = config.eos_token_ids[0] if names else -1
    return NgramTables(tuple(open_ngram_table(store, name) for name in names), eos)
