"""Host side: a wrong twin of how rows reach the device: one staging buffer, written again at once."""

from collections.abc import Callable

import numpy as np

from fnx_jax.lanes.tiles import Block, Tile

ALIGNMENT = 64
"""Bytes; an array that begins at a multiple of it is read in place by a CPU device."""


def one_buffer() -> Callable[[np.ndarray, Tile | Block], np.ndarray]:
    """A `padded` that fills one buffer a plan array for all tiles of a round."""
    buffers: dict[tuple, np.ndarray] = {}

    def padded(values: np.ndarray, tile: Tile | Block) -> np.ndarray:
        key = (id(values), tile.height, values.shape[1:], values.dtype)
        if key not in buffers:
            buffers[key] = aligned((tile.height, *values.shape[1:]), values.dtype)
        out = buffers[key]
        out[: tile.live] = values[tile.start : tile.start + tile.live]
        out[tile.live :] = 0
        return out

    return padded


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros that begin at a multiple of ALIGNMENT bytes."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    return raw[first : first + size].view(dtype).reshape(shape)
