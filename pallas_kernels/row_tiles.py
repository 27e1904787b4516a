"""Traced: runs a function of rows in heights that give a row the same bits, however many came along.

A dot of M rows may be computed differently for every M; a dot of ROW_TILE rows is always the same program. CPUs compute
a row alike in dots of any height from SHORTEST on, so there all rows make one dot. Zeros fill what is missing. Read
next: exl3/reference.py, the first user.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

ROW_TILE = 16
"""Height of a tile: that of a matrix unit's operand on GPUs."""
SHORTEST = 2
"""Rows of the lowest dot whose rows have the bits of a tile's, where heights are free."""
NARROWEST = 16
"""Outputs of the narrowest such dot: with one, two or three, a low dot is another program than a tile."""
_SWEPT = ("0.10.", "0.11.", "0.12.")
"""jax versions whose CPU dots were compared over heights."""


def heights_are_free() -> bool:
    """Whether a dot with weights stored [out, in] gives a row the same bits at any height from SHORTEST on."""
    return jax.default_backend() == "cpu" and jax.__version__.startswith(_SWEPT)


def dot_height(rows: int) -> int:
    """How high `rows` rows of one operand must be made for a dot that gives each its bits."""
    return max(SHORTEST, rows) if heights_are_free() else padded_rows(rows)


def expert_height(pairs: int, experts: int) -> int:
    """Rows of a tile of one expert's rows, where `pairs` (row, pick) pairs meet `experts` experts: a static choice."""
    if not heights_are_free():
        return ROW_TILE
    return min(4 * ROW_TILE, max(SHORTEST, 1 << (-(-pairs // experts) - 1).bit_length()))


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


def row_dot(
    f: Callable[[Shaped[Array, "B K"]], Shaped[Array, "B N"]], x_MK: Shaped[Array, "M K"], outputs: int
) -> Shaped[Array, "M N"]:
    """Applies `f`, a dot with weights stored [out, in] of `outputs` outputs, to the rows of `x_MK`.

    Where heights are free it is one call of all rows, else `row_tiles`; below NARROWEST outputs it is tiled everywhere.

    Args:
      f: as in row_tiles. x_MK: any number of rows, none included.
    Returns: [M, ...], the dtype of f's result.
    """
    if not heights_are_free() or outputs < NARROWEST:
        return row_tiles(f, x_MK)
    rows = x_MK.shape[0]
    return f(pad_rows(x_MK, SHORTEST) if rows < SHORTEST else x_MK)[:rows]
