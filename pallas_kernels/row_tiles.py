"""Traced: runs a function of rows in tiles of a fixed height, so that a row's bits ignore how many came along.

A dot of M rows may be computed differently for every M; a dot of ROW_TILE rows is always the same program. Zeros fill
the last tile. Read next: exl3/reference.py, the first user.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

ROW_TILE = 16
"""Height of a tile: that of a matrix unit's operand on GPUs."""


def padded_rows(rows: int, multiple: int = ROW_TILE) -> int:
    """The smallest multiple of `multiple` that holds `rows`, and at least one."""
    return max(1, -(-rows // multiple)) * multiple


def pad_rows(x_MK: Shaped[Array, "M K"], multiple: int = ROW_TILE) -> Shaped[Array, "P K"]:
    """Appends rows of zeros up to a multiple of `multiple`."""
    missing = padded_rows(x_MK.shape[0], multiple) - x_MK.shape[0]
    return jnp.pad(x_MK, ((0, missing), (0, 0))) if missing else x_MK


def row_tiles(
    f: Callable[[Shaped[Array, "16 K"]], Shaped[Array, "16 N"]], x_MK: Shaped[Array, "M K"]
) -> Shaped[Array, "M N"]:
    """Applies `f` to [ROW_TILE, K] tiles of `x_MK` and returns the M rows of the results in order.

    One tile is a plain call and more are a loop over the same program. `f` must keep rows apart: row r of its result
    may depend on row r of its argument alone.

    Args:
      f: a function of a tile, traced once. x_MK: any number of rows, none included.
    Returns: [M, ...], the dtype of f's result.
    """
    rows, width = x_MK.shape
    padded = pad_rows(x_MK)
    if padded.shape[0] == ROW_TILE:
        return f(padded)[:rows]
    tiles = lax.map(f, padded.reshape(-1, ROW_TILE, width))
    return tiles.reshape(-1, *tiles.shape[2:])[:rows]
