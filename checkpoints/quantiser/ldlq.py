"""Host side: searches the tiles of a matrix, last rows first, each row of tiles making up for the errors below it.

Read next: feedback.py (where the factor comes from), search.py.
"""

import numpy as np
from jaxtyping import Float32, UInt16

from checkpoints.exl3 import TILE
from checkpoints.quantiser.search import search
from checkpoints.quantiser.tiles import VALUES, from_tiles, to_tiles

_TILES = 1 << 14
"""Searched at once, about: enough for a device with many lanes, and little beside a layer."""


def search_matrix(
    target_KN: Float32[np.ndarray, "K N"], lower_KK: Float32[np.ndarray, "K K"] | None, bits: float, codebook: str
) -> tuple[UInt16[np.ndarray, "X Y 256"], Float32[np.ndarray, "K N"]]:
    """Block LDLQ: rows b look for target[b] + lower[below, b]^T @ (target - found)[below], below being the rows after.

    Columns never meet, so matrices that share a factor may stand side by side.

    Args:
      lower_KK: strictly block-lower, blocks of 16, or None: then every tile is searched for its own sake.
    Returns: states of the tiles in stream order, and the values they decode to.
    Source: QuIP#, arXiv 2402.04396; QTIP, arXiv 2406.11235.
    """
    K, N = target_KN.shape
    states = np.empty((K // TILE, N // TILE, VALUES), np.uint16)
    found_KN = np.empty_like(target_KN)
    if lower_KK is None:
        step = max(1, _TILES // (N // TILE))
        for tile in range(0, K // TILE, step):
            rows = slice(TILE * tile, TILE * (tile + step))
            states[tile : tile + step], found_KN[rows] = _search_rows(target_KN[rows], bits, codebook)
        return states, found_KN
    error_KN = np.empty_like(target_KN)
    for first in reversed(range(0, K, TILE)):
        rows, below = slice(first, first + TILE), slice(first + TILE, None)
        wanted = target_KN[rows] + lower_KK[below, rows].T @ error_KN[below]
        states[first // TILE], found_KN[rows] = _search_rows(wanted, bits, codebook)
        error_KN[rows] = target_KN[rows] - found_KN[rows]
    return states, found_KN


def _search_rows(target_KN: np.ndarray, bits: float, codebook: str) -> tuple[np.ndarray, np.ndarray]:
    tiles = to_tiles(target_KN)
    states, values = search(tiles.reshape(-1, VALUES), bits, codebook)
    return states.reshape(tiles.shape), from_tiles(values.reshape(tiles.shape))
