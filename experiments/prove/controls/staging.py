"""Host side: a wrong twin of how rows reach the device: one staging buffer, filled again before it was read."""

import numpy as np

from fnx_jax.lanes import tiles
from fnx_jax.lanes.tiles import Block, Tile

PADDED = tiles.padded


def one_ahead(values: np.ndarray, block: Block | Tile) -> np.ndarray:
    """A `padded` whose buffer already holds the rows after the block's, as if the host had run ahead of the device.

    What the device reads is settled here and by no race, so the twin is as wrong on a fast device as on a slow one.
    """
    buffer = PADDED(values, block)
    later = values[block.start + block.live :][: block.height]
    buffer[: len(later)] = later
    return buffer
