"""Host side: matrices to tiles in stream order and back, states to the words of a file. Read next: search.py."""

import numpy as np
from jaxtyping import Int, Int16

from checkpoints.exl3 import TILE

VALUES = TILE * TILE
_POSITION = np.arange(VALUES)
_LANE, _ITEM = _POSITION >> 3, _POSITION & 7
ROW = 2 * (_LANE & 3) + (_ITEM & 1) + 8 * (_ITEM >> 1 & 1)
COLUMN = (_LANE >> 2) + 8 * (_ITEM >> 2)
"""Input and output, inside a tile, of each position of its stream."""


def to_tiles(x_KN: np.ndarray) -> np.ndarray:
    """[K, N] -> [K/16, N/16, 256], in stream order."""
    K, N = x_KN.shape
    return x_KN.reshape(K // TILE, TILE, N // TILE, TILE).transpose(0, 2, 1, 3)[:, :, ROW, COLUMN]


def from_tiles(tiles: np.ndarray) -> np.ndarray:
    """[K/16, N/16, 256] in stream order -> [K, N]."""
    square = np.empty((*tiles.shape[:2], TILE, TILE), tiles.dtype)
    square[:, :, ROW, COLUMN] = tiles
    return square.transpose(0, 2, 1, 3).reshape(tiles.shape[0] * TILE, tiles.shape[1] * TILE)


def pack_states(states: Int[np.ndarray, "... 256"], bits: float) -> Int16[np.ndarray, "... W"]:
    """The new bits of every state, as 16 * bits words: most significant bit first in pairs of words, low word first."""
    position, shift = _ring_bits(bits)
    words = np.empty((*states.shape[:-1], int(TILE * bits)), np.int16)
    for row in np.ndindex(states.shape[:-2]):  # a row of tiles at a time: single bits take sixteen times their room
        ring = (states[row][:, position] >> shift & 1).astype(np.uint8)
        packed = np.ascontiguousarray(np.packbits(ring, axis=-1))
        words[row] = packed.view(">u4").astype("<u4").view("<i2")
    return words


def _ring_bits(bits: float) -> tuple[np.ndarray, np.ndarray]:
    """For each bit of a tile's ring, the position that brings it and its place in that position's state."""
    ends = np.floor((_POSITION + 1) * bits).astype(np.int64)
    bit = np.arange(int(VALUES * bits))
    position = np.searchsorted(ends, bit, side="right")
    return position, (ends[position] - 1 - bit).astype(np.uint16)
