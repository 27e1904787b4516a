"""Host side: whole leaves from a checkpoint, as the running model holds them, before they are cut and placed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from checkpoints import exl3
from checkpoints.errors import CheckpointError
from checkpoints.naming import EXPERT_PROJECTIONS, expert_layout, expert_prefix, names_under, read_expert
from checkpoints.store import Store
from fnx_jax.families.flash_next.config import FlashNextConfig
from pallas_kernels.exl3 import DecodedWeight, Exl3Weight, trellis

Progress = Callable[[int], None]
"""Told the file bytes of each leaf that is done."""
HostWeight = np.ndarray | Exl3Weight | DecodedWeight
"""A linear layer of NumPy arrays."""


@dataclass(frozen=True)
class Arithmetic:
    """exact: operands and caches stay float32. decode: EXL3 trellises are decoded at load, where no kernel does."""

    exact: bool
    decode: bool


class Source(Protocol):
    """Where whole leaves come from, by the names of the files. Raises CheckpointError by name. path: for errors."""

    @property
    def path(self) -> Path: ...

    def plain(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A tensor as it is."""
        ...

    def linear(self, prefix: str, outputs: int, inputs: int) -> HostWeight:
        """A linear layer, plain or EXL3, whichever the checkpoint holds."""
        ...

    def experts(self, layer_prefix: str, config: FlashNextConfig) -> list[list[HostWeight]]:
        """Gates, ups and downs of a layer's routed experts, by id."""
        ...


@dataclass(frozen=True)
class StoreSource:
    """Leaves read from safetensors files, one by one."""

    store: Store
    arithmetic: Arithmetic
    progress: Progress

    @property
    def path(self) -> Path:
        return self.store.path

    def plain(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name not in self.store:
            raise CheckpointError(f"{self.store.path}: {name}: missing")
        info = self.store.info(name)
        if info.shape != shape:
            raise CheckpointError(f"{info.where}: shape {list(info.shape)}, but the config asks for {list(shape)}")
        value = self.store.read(name)
        self.progress(info.nbytes)
        return value.astype(np.float32) if self.arithmetic.exact else value

    def linear(self, prefix: str, outputs: int, inputs: int) -> HostWeight:
        if exl3.is_linear(self.store, prefix):
            return self._exl3(prefix)
        return self.plain(prefix + ".weight", (outputs, inputs))

    def experts(self, layer_prefix: str, config: FlashNextConfig) -> list[list[HostWeight]]:
        packed = expert_layout(self.store, layer_prefix) == "exl3"
        found: list[list[HostWeight]] = []
        for projection in EXPERT_PROJECTIONS:
            if packed:
                names = [expert_prefix(layer_prefix, e, projection) for e in range(config.experts)]
                found.append([self._exl3(name) for name in names])
            else:
                found.append([self._plain_expert(layer_prefix, e, projection) for e in range(config.experts)])
        return found

    def _plain_expert(self, layer_prefix: str, expert: int, projection: str) -> np.ndarray:
        value = read_expert(self.store, layer_prefix, expert, projection)
        self.progress(value.nbytes)
        return value.astype(np.float32) if self.arithmetic.exact else value

    def _exl3(self, prefix: str) -> Exl3Weight | DecodedWeight:
        weight = exl3.read_linear(self.store, prefix)
        self.progress(sum(self.store.info(name).nbytes for name in names_under(self.store, prefix + ".")))
        if not self.arithmetic.decode:
            return weight
        return trellis.decoded(weight, np.float32 if self.arithmetic.exact else np.float16)
