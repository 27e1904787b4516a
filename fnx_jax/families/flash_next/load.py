"""Host side: fills the parameter tree from a store, leaf by leaf, and leaves nothing behind where a leaf fails."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from checkpoints.errors import CheckpointError
from checkpoints.inventory import Inventory
from checkpoints.naming import MTP_PREFIX, language_prefix
from checkpoints.ngram import open_ngram_table
from checkpoints.store import Store
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.ngram_embedding import NgramTables
from fnx_jax.families.flash_next.params import ModelParams
from fnx_jax.families.flash_next.parts import exl3_parts, plain_parts, pool_parts
from fnx_jax.families.flash_next.reading import Arithmetic, Progress, Source, StoreSource
from fnx_jax.families.flash_next.shards import Columns, Shards
from fnx_jax.families.flash_next.weights import model_params
from fnx_jax.mesh import own_ranks, place_dealt
from pallas_kernels.dense_matmul import Selected, Weight
from pallas_kernels.expert_matmul import ExpertLines, LineMap

__all__ = ["Arithmetic", "PlacedLeaves", "StoreLeaves", "load_params", "open_ngrams", "parameter_bytes", "place_params"]


class PlacedLeaves:
    """Leaves from a source, placed on a mesh; each rank gets its own part. `placed` lists what a failure frees."""

    def __init__(self, source: Source, mesh: Mesh):
        self._source, self._mesh = source, mesh
        self.placed: list[jax.Array] = []

    def plain(self, name: str, shape: tuple[int, ...], rows: Columns | None = None) -> jax.Array:
        return self._place_rows(self._source.plain(name, shape), rows)

    def centred(self, name: str, shape: tuple[int, ...]) -> jax.Array:
        return self._place([self._source.plain(name, shape)])

    def conv(self, name: str, channels: int, taps: int, rows: Columns | None = None) -> jax.Array:
        return self._place_rows(self._source.plain(name, (channels, 1, taps)).reshape(channels, taps), rows)

    def linear(self, prefix: str, outputs: int, inputs: int, columns: Columns | None = None) -> Weight:
        whole = self._source.linear(prefix, outputs, inputs)
        if isinstance(whole, np.ndarray):
            return self._place([whole] if columns is None else plain_parts(whole, columns))
        parts, places = ([whole], None) if columns is None else exl3_parts(whole, columns)
        weight = self._place_trees(parts)
        return weight if places is None else Selected(weight=weight, columns=self._place(places))

    def experts(self, layer_prefix: str, config: FlashNextConfig, shards: Shards) -> tuple[ExpertLines, LineMap]:
        own, share = own_ranks(self._mesh), config.experts // shards.ranks
        held = [expert for rank in own for expert in range(rank * share, (rank + 1) * share)]
        pools, pool_of, line_of = [], [], []
        for weights in self._source.experts(layer_prefix, config, held):
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

    def _place(self, parts: Sequence[np.ndarray]) -> jax.Array:
        array = place_dealt(parts, self._mesh)
        self.placed.append(array)
        return array

    def _place_rows(self, value: np.ndarray, rows: Columns | None) -> jax.Array:
        return self._place([value] if rows is None else [value[wanted] for wanted in rows])

    def _place_trees(self, parts: Sequence[Any]) -> Any:
        return jax.tree.map(lambda *leaves: self._place(leaves), *parts)


class StoreLeaves(PlacedLeaves):
    """Leaves from a checkpoint's files."""

    def __init__(self, store: Store, mesh: Mesh, arithmetic: Arithmetic, progress: Progress):
        super().__init__(StoreSource(store, arithmetic, progress), mesh)


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
    source = StoreSource(store, arithmetic, progress)
    return place_params(source, config, shards, mesh, language_prefix(store), with_mtp)


def place_params(
    source: Source, config: FlashNextConfig, shards: Shards, mesh: Mesh, prefix: str, with_mtp: bool
) -> ModelParams:
    """`load_params` from any source; prefix: of the text model, dot included."""
    leaves = PlacedLeaves(source, mesh)
    try:
        return model_params(config, shards, leaves, prefix, with_mtp)
    except BaseException:
        leaves.free()
        raise


def parameter_bytes(store: Store, inventory: Inventory, with_mtp: bool) -> int:
    """Returns the file bytes of which `load_params` tells: all but n-gram tables and a draft head that is left out."""
    unread = (*(table.prefix for table in inventory.tables), *(() if with_mtp else (MTP_PREFIX,)))
    return sum(store.info(name).nbytes for name in inventory.tensors if not name.startswith(unread))


def open_ngrams(store: Store | None, config: FlashNextConfig, prefix: str | None = None) -> NgramTables:
    """Opens the table of every n-gram layer; rows are read when they are needed.

    Args: store: None where no layer has one. prefix: of the text model's names; None asks the store.
    """
    if not config.ngram_layers:
        return NgramTables((), -1)
    if store is None:
        raise CheckpointError("the n-gram tables that config.json names are missing")
    prefix = language_prefix(store) if prefix is None else prefix
    names = [f"{prefix}layers.{layer}.ple.ple_embedding." for layer in config.ngram_layers]
    eos = config.eos_token_ids[0]
    return NgramTables(tuple(open_ngram_table(store, name) for name in names), eos)
