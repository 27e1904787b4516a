"""A case of the sweep: one op of the model, with data for several tiles of rows.

Read next: dense_cases.py and its siblings (the ops), contexts.py (the programs that each op is put in).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

TILES = 5
ROWS = 16

Tree = Any
"""A pytree of arrays."""


@dataclass(frozen=True, eq=False)
class Case:
    """function(tile, shared) -> result; result row r is a function of tile row r alone, for any number of rows.

    tile, result: pytrees whose leaves have the row axis first.
    data: tiles side by side, leaves [TILES, ROWS, ...]. shared: what all tiles meet, weights above all.
    """

    function: Callable[[Tree, Tree], Tree]
    data: Tree
    shared: Tree = ()

    def tile(self, index: int) -> Tree:
        """One tile of the data."""
        return jax.tree.map(lambda leaf: leaf[index], self.data)

    def rows(self, count: int) -> Tree:
        """The first `count` rows of all tiles in order."""
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], self.data)


@cache
def program(case: Case) -> Callable[[Tree, Tree], Tree]:
    """The op compiled alone; a tile of 16 rows is one program."""
    return jax.jit(case.function)


Cases = Mapping[str, Case]


def normal(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Normal float32 values."""
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def tiles(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Normal float32 rows [TILES, ROWS, *shape]."""
    return normal(seed, TILES, ROWS, *shape, scale=scale)


def unequal(found: Tree, wanted: Tree) -> int:
    """Counts entries whose bits differ; NaNs of one sign are equal."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return sum(int((_bits(a) != _bits(b)).sum()) for a, b in pairs)


def _bits(array: Any) -> np.ndarray:
    array = np.asarray(array)
    return array if array.dtype == bool else array.view(f"u{array.dtype.itemsize}")
