"""Host side: searches the tiles of a matrix, last rows first, each row of tiles making up for the errors below it.

Read next: feedback.py (where the factor comes from), search.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, UInt16

from checkpoints.exl3 import TILE
from checkpoints.quantiser.search import search
from checkpoints.quantiser.tiles import VALUES, from_tiles, to_tiles

_TILES = 1 << 14
"""Searched at once, about: enough for a device with many lanes, and little beside a layer."""


@dataclass(frozen=True)
class Fed:
    """A matrix to search for, and what the errors of later rows add to earlier ones.

    lower_KK: strictly block-lower, blocks of 16, or None: then every tile is searched for its own sake. Columns never
    meet, so matrices that share a factor may stand side by side.
    """

    target_KN: Float32[np.ndarray, "K N"]
    lower_KK: Float32[np.ndarray, "K K"] | None


Found = tuple[UInt16[np.ndarray, "X Y 256"], Float32[np.ndarray, "K N"]]
"""States of a matrix's tiles in stream order, and the values they decode to."""


def search_matrices(matrices: Sequence[Fed], bits: float, codebook: str) -> list[Found]:
    """Block LDLQ: rows b look for target[b] + lower[below, b]^T @ (target - found)[below], below being the rows after.

    All matrices have as many rows; a row of tiles is searched in all of them at once.

    Source: QuIP#, arXiv 2402.04396; QTIP, arXiv 2406.11235.
    """
    K, out = len(matrices[0].target_KN), [_empty(fed.target_KN) for fed in matrices]
    columns = [fed.target_KN.shape[1] for fed in matrices]
    step = TILE
    if all(fed.lower_KK is None for fed in matrices):
        step *= max(1, _TILES // (sum(columns) // TILE))
    errors = [np.empty_like(fed.target_KN) for fed in matrices]
    ends = np.cumsum([0, *columns])
    for first in reversed(range(0, K, step)):
        rows, below = slice(first, first + step), slice(first + step, None)
        wanted = np.concatenate([_wanted(fed, e, rows, below) for fed, e in zip(matrices, errors, strict=True)], axis=1)
        states, found_RN = _search_rows(wanted, bits, codebook)
        for fed, error, (own_states, own_KN), left, right in zip(matrices, errors, out, ends, ends[1:], strict=False):
            own_states[first // TILE : (first + step) // TILE] = states[:, left // TILE : right // TILE]
            own_KN[rows] = found_RN[:, left:right]
            if fed.lower_KK is not None:
                error[rows] = fed.target_KN[rows] - own_KN[rows]
    return out


def _empty(target_KN: np.ndarray) -> Found:
    K, N = target_KN.shape
    return np.empty((K // TILE, N // TILE, VALUES), np.uint16), np.empty_like(target_KN)


def _wanted(fed: Fed, error_KN: np.ndarray, rows: slice, below: slice) -> np.ndarray:
    if fed.lower_KK is None:
        return fed.target_KN[rows]
    return fed.target_KN[rows] + fed.lower_KK[below, rows].T @ error_KN[below]


def _search_rows(target_KN: np.ndarray, bits: float, codebook: str) -> tuple[np.ndarray, np.ndarray]:
    tiles = to_tiles(target_KN)
    states, values = search(tiles.reshape(-1, VALUES), bits, codebook)
    return states.reshape(tiles.shape), from_tiles(values.reshape(tiles.shape))
