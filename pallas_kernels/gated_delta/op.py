"""Traced: a window of rows of any lanes through one recurrent layer.

The committed state moves only by rows that are certain; drafts under test walk on a working copy, and their raw rows
stay in the ring. `fold` walks accepted ones into the committed state later, by the same step.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from pallas_kernels.gated_delta.reference import DeltaInputs, DeltaSizes, DeltaWeights, delta_inputs, delta_step
from pallas_kernels.gated_delta.rows import RowPlaces, read_taps, recent_taps, write_ring
from pallas_kernels.row_tiles import ROW_TILE

__all__ = ["DeltaSizes", "DeltaState", "DeltaWeights", "fold", "gated_delta_rows"]


@struct.dataclass
class DeltaState:
    """One layer's state: committed [L, H, dk, dv] float32; ring [L, R, C + 2H] float32, raw rows and their gates."""

    committed: Any
    ring: Any


_Walk = tuple[jax.Array, jax.Array]


def fold(
    state: DeltaState, folded_L: Int[Array, " L"], target_L: Int[Array, " L"], weights: DeltaWeights, sizes: DeltaSizes
) -> DeltaState:
    """Walks the ring's rows folded_L .. target_L - 1 of every lane into the committed state.

    At most ROW_TILE rows a lane. A target of 0 empties the lane's state.
    """
    fresh = (target_L == 0)[:, None, None, None]
    emptied = replace(state, committed=jnp.where(fresh, jnp.float32(0), state.committed))
    return _catch_up(emptied, folded_L, target_L, weights, sizes)


def _catch_up(
    state: DeltaState, folded_L: Int[Array, " L"], target_L: Int[Array, " L"], weights: DeltaWeights, sizes: DeltaSizes
) -> DeltaState:
    """`fold` for lanes that are behind their targets; the others' states are not even copied."""

    def one_lane(lane: jax.Array, committed: jax.Array) -> jax.Array:
        position = folded_L[lane] + jnp.arange(ROW_TILE, dtype=jnp.int32)
        inputs = _inputs(state.ring, jnp.broadcast_to(lane, position.shape), position, weights, sizes)

        def step(row: jax.Array, value: jax.Array) -> jax.Array:
            return delta_step(value, jax.tree.map(lambda a: a[row], inputs))[0]

        count = jnp.maximum(target_L[lane] - folded_L[lane], 0)
        return committed.at[lane].set(jax.lax.fori_loop(0, count, step, committed[lane]))

    lanes = jnp.where(jnp.any(target_L > folded_L), folded_L.shape[0], 0)
    return replace(state, committed=jax.lax.fori_loop(0, lanes, one_lane, state.committed))


def gated_delta_rows(
    state: DeltaState,
    folded_L: Int[Array, " L"],
    places: RowPlaces,
    raw_BC: Float[Array, "B C"],
    gates_BH: Float[Array, "B 2H"],
    weights: DeltaWeights,
    sizes: DeltaSizes,
) -> tuple[DeltaState, Float[Array, "B H dv"]]:
    """Runs the rows of a batch through the recurrence, lane by lane in order.

    Args:
      state, folded_L: the lanes' states and how many rows each has taken in. A lane whose first row here stands
        further takes the rows between from its ring first; one whose first row is 0 starts empty.
      raw_BC, gates_BH: projections of the rows before the convolution, and b and a side by side. float32.
    Returns: the state after the certain rows, and each row's read-out.
    """
    first = places.first_B()
    lane_count = folded_L.shape[0]
    target = folded_L.at[jnp.where(first, places.lane_B, lane_count)].set(places.position_B, mode="drop")
    state = _catch_up(state, folded_L, target, weights, sizes)
    rows = jnp.concatenate([raw_BC, gates_BH], axis=-1)
    taps = recent_taps(state.ring, places, rows, weights.conv_CT.shape[1], 1)[:, :, : raw_BC.shape[1]]
    inputs = delta_inputs(taps, gates_BH, weights, sizes)
    ring = write_ring(state.ring, places, rows)
    # Where each lane's rows end, and its certain ones, which come first.
    end_L = _past_last(places.lane_B, places.live_B, lane_count)
    sure_L = _past_last(places.lane_B, places.live_B & ~places.speculative_B, lane_count)

    def row(b: jax.Array, carry: _Walk) -> _Walk:
        working, out = carry
        working, read = delta_step(working, jax.tree.map(lambda a: a[b], inputs))
        return working, out.at[b].set(read)

    def lane(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        b, committed, out = carry
        lane = places.lane_B[b]
        sure, end = jnp.maximum(sure_L[lane], b), end_L[lane]
        before = jnp.where(places.position_B[b] == 0, jnp.float32(0), committed[lane])
        kept, out = jax.lax.fori_loop(b, sure, row, (before, out))
        committed = committed.at[lane].set(kept)
        _, out = jax.lax.fori_loop(sure, end, row, (kept, out))
        return end, committed, out

    out = jnp.zeros((raw_BC.shape[0], sizes.value_heads, sizes.value_size), jnp.float32)
    live = jnp.sum(places.live_B, dtype=jnp.int32)
    _, committed, out = jax.lax.while_loop(lambda carry: carry[0] < live, lane, (jnp.int32(0), state.committed, out))
    return DeltaState(committed=committed, ring=ring), out


def _past_last(lane_B: Array, chosen_B: Array, lanes: int) -> Int[Array, " L"]:
    """One past each lane's last chosen row, 0 where it has none."""
    past_B = jnp.arange(1, lane_B.shape[0] + 1, dtype=jnp.int32)
    return jnp.zeros((lanes,), jnp.int32).at[jnp.where(chosen_B, lane_B, lanes)].max(past_B, mode="drop")


def _inputs(ring: Array, lane_B: Array, position_B: Array, weights: DeltaWeights, sizes: DeltaSizes) -> DeltaInputs:
    channels = weights.conv_CT.shape[0]
    taps = read_taps(ring, lane_B, position_B, weights.conv_CT.shape[1], 1)
    return delta_inputs(taps[:, :, :channels], taps[:, -1, channels:], weights, sizes)
