"""Traced: where the rows of a batch belong, and rings of recent rows addressed by absolute position.

A ring holds the newest rows of a lane at `position % size`. A rejected row's entry is overwritten by the next row at
that position and never read before, so a ring needs no commit.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.row_tiles import ROW_TILE


@struct.dataclass
class RowPlaces:
    """lane_B, position_B: int32. live_B: False for padding, which comes last. speculative_B: a draft under test.

    Rows of one lane are contiguous and ascend by one.
    """

    lane_B: Any
    position_B: Any
    live_B: Any
    speculative_B: Any

    def first_B(self) -> Bool[Array, " B"]:
        """The rows that are their lane's first of this batch."""
        other = self.lane_B[1:] != self.lane_B[:-1]
        return jnp.concatenate([jnp.ones((1,), bool), other]) & self.live_B


def ring_rows(reach: int) -> int:
    """Rows of a ring that is read `reach` rows back: a window and what lies behind it, at least one more window."""
    return ROW_TILE + max(ROW_TILE, reach)


def write_ring(ring_LRC: Float[Array, "L R C"], places: RowPlaces, rows_BC: Float[Array, "B C"]) -> Array:
    """Stores each lane's newest live rows at their positions: as many as a ring holds, of however many there are."""
    lanes, size = ring_LRC.shape[:2]
    lane = jnp.where(places.live_B, places.lane_B, lanes)
    last_L = jnp.full((lanes,), -1, jnp.int32).at[lane].max(places.position_B, mode="drop")
    stays = places.position_B > last_L[jnp.minimum(lane, lanes - 1)] - size
    return ring_LRC.at[jnp.where(stays, lane, lanes), places.position_B % size].set(rows_BC, mode="drop")


def recent_taps(
    ring_LRC: Float[Array, "L R C"], places: RowPlaces, rows_BC: Float[Array, "B C"], taps: int, dilation: int
) -> Float[Array, "B T C"]:
    """`read_taps` of rows that are not in the ring yet: taps among these rows are theirs, older ones the ring's."""
    row = jnp.arange(rows_BC.shape[0], dtype=jnp.int32)
    back = jnp.arange(taps - 1, -1, -1, dtype=jnp.int32) * dilation
    # Rows of a lane are contiguous: the newest first row so far is the lane's own.
    first = jax.lax.cummax(jnp.where(places.first_B(), row, 0))
    source_BT = row[:, None] - back[None, :]
    here = (source_BT >= first[:, None])[:, :, None]
    older = read_taps(ring_LRC, places.lane_B, places.position_B, taps, dilation)
    return jnp.where(here, rows_BC[jnp.maximum(source_BT, 0)], older)


def read_taps(
    ring_LRC: Float[Array, "L R C"], lane_B: Int[Array, " B"], position_B: Int[Array, " B"], taps: int, dilation: int
) -> Float[Array, "B T C"]:
    """Rows position - (taps-1-j)*dilation for j below taps; the last tap is the row itself, +0.0 before the start."""
    back = jnp.arange(taps - 1, -1, -1, dtype=jnp.int32) * dilation
    position_BT = position_B[:, None] - back[None, :]
    rows = ring_LRC[lane_B[:, None], position_BT % ring_LRC.shape[1]]
    return jnp.where(position_BT[:, :, None] >= 0, rows, jnp.float32(0))


def depthwise(taps_BTC: Float[Array, "B T C"], weight_CT: Float[Array, "C T"]) -> Float[Array, "B C"]:
    """sum_j weight[:, j] * tap j, taps added in order."""
    weight = weight_CT.astype(jnp.float32)
    total = taps_BTC[:, 0] * weight[None, :, 0]
    for tap in range(1, taps_BTC.shape[1]):
        total = total + taps_BTC[:, tap] * weight[None, :, tap]
    return total
