"""Host side: fills the parameter tree from a store, leaf by leaf, and leaves nothing behind where a leaf fails."""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import numpy as np

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
from fnx_jax.families.flash_next.params import ModelParams
from fnx_jax.families.flash_next.weights import model_params
from pallas_kernels.dense_matmul import Weight
from pallas_kernels.exl3 import trellis
from pallas_kernels.expert_matmul import ExpertLines, LineMap, Pools

Progress = Callable[[int], None]
"""Told the file bytes of each leaf that is done."""


@dataclass(frozen=True)
class Arithmetic:
    """exact: operands and caches stay float32. decode: EXL3 trellises are decoded at load, where no kernel does."""

    exact: bool
    decode: bool


@dataclass
class StoreLeaves:
    """Leaves from a checkpoint, placed on one device. `placed` lists what a failure must free."""

    store: Store
    device: jax.Device
    arithmetic: Arithmetic
    progress: Progress
    placed: list[jax.Array] = field(default_factory=list)

    def plain(self, name: str, shape: tuple[int, ...]) -> jax.Array:
        return self._place(self._read(name, shape))

    def centred(self, name: str, shape: tuple[int, ...]) -> jax.Array:
        value = self._read(name, shape)
        mean = float(np.mean(value.astype(np.float32)))
        # A weight stored around one would be applied as two.
        if not abs(mean) < 0.5:
            raise CheckpointError(
                f"{self.store.info(name).where}: mean {mean:.3f}, but this norm is stored around zero"
            )
        return self._place(value)

    def conv(self, name: str, channels: int, taps: int) -> jax.Array:
        return self._place(self._read(name, (channels, 1, taps)).reshape(channels, taps))

    def linear(self, prefix: str, outputs: int, inputs: int) -> Weight:
        if exl3.is_linear(self.store, prefix):
            return self._place_tree(self._exl3(prefix))
        return self._place(self._read(prefix + ".weight", (outputs, inputs)))

    def experts(self, layer_prefix: str, config: FlashNextConfig) -> tuple[ExpertLines, LineMap]:
        packed = expert_layout(self.store, layer_prefix) == "exl3"
        stacks = []
        for projection in EXPERT_PROJECTIONS:
            if packed:
                weights = [self._exl3(expert_prefix(layer_prefix, e, projection)) for e in range(config.experts)]
            else:
                weights = [self._plain_expert(layer_prefix, e, projection) for e in range(config.experts)]
            stacks.append(_pools(weights))
        pools = [tuple(self._place_tree(pool) for pool in pools) for pools, _, _ in stacks]
        line_map = LineMap(
            pool_PE=self._place(np.stack([pool for _, pool, _ in stacks])),
            line_PE=self._place(np.stack([line for _, _, line in stacks])),
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

    def _plain_expert(self, layer_prefix: str, expert: int, projection: str) -> np.ndarray:
        value = read_expert(self.store, layer_prefix, expert, projection)
        self.progress(value.nbytes)
        return value.astype(np.float32) if self.arithmetic.exact else value

    def _exl3(self, prefix: str) -> Weight:
        weight = exl3.read_linear(self.store, prefix)
        self.progress(sum(self.store.info(name).nbytes for name in names_under(self.store, prefix + ".")))
        if not self.arithmetic.decode:
            return weight
        return trellis.decoded(weight, np.float32 if self.arithmetic.exact else np.float16)

    def _place(self, value: np.ndarray) -> jax.Array:
        array = jax.device_put(value, self.device)
        self.placed.append(array)
        return array

    def _place_tree(self, tree):
        return jax.tree.map(self._place, tree)


def _pools(weights: list) -> tuple[Pools, np.ndarray, np.ndarray]:
    """Stacks weights of one structure and shape into a pool each. Returns pools, and each weight's pool and line."""
    kinds: dict[tuple, list[int]] = {}
    for index, weight in enumerate(weights):
        leaves, structure = jax.tree.flatten(weight)
        kinds.setdefault((structure, *((leaf.shape, leaf.dtype) for leaf in leaves)), []).append(index)
    pool, line = np.zeros(len(weights), np.int32), np.zeros(len(weights), np.int32)
    for number, members in enumerate(kinds.values()):
        pool[members], line[members] = number, np.arange(len(members))
    stacked = [jax.tree.map(lambda *a: np.stack(a), *[weights[i] for i in members]) for members in kinds.values()]
    return tuple(stacked), pool, line


def load_params(
    store: Store,
    config: FlashNextConfig,
    device: jax.Device,
    arithmetic: Arithmetic,
    with_mtp: bool,
    progress: Progress = lambda nbytes: None,
) -> ModelParams:
    """Reads and places every parameter. Raises CheckpointError by name; nothing stays on the device then."""
    leaves = StoreLeaves(store, device, arithmetic, progress)
    try:
        return model_params(config, leaves, language_prefix(store), with_mtp)
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
