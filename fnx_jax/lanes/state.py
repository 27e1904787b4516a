"""Traced: what the device holds for every lane between two rounds, and how it moves on.

Lanes never read each other. A lane's rows are addressed by absolute position, so a lane is emptied by running its row
0 and cut back by running the row at the cut again; only recurrent states must be walked on, by `commit`.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from fnx_jax.families import Family
from fnx_jax.families.leaves import Leaf
from fnx_jax.mesh import SAME, zeros
from pallas_kernels.gated_delta import RowPlaces


@struct.dataclass
class LaneState:
    """cache: the family's, paged rows and per-lane leaves.

    streams_LN: float32, the residual streams of each lane's newest certain row, which a draft head pairs with the
    token after it.
    """

    cache: Any
    streams_LN: Any


def empty_state(
    family: Family, config: Any, shards: Any, lanes: int, pages: int, page: int, dtype: jnp.dtype, mesh: Mesh
) -> LaneState:
    """Allocates the lanes once, each rank's share on that rank; nothing is allocated per request."""
    shapes = state_shapes(family, config, shards, lanes, pages, page, dtype)
    layout = LaneState(cache=family.cache_layout(shapes.cache, shards), streams_LN=SAME)
    return jax.tree.map(lambda leaf, spec: zeros(leaf.shape, leaf.dtype, spec, mesh), shapes, layout)


def state_shapes(
    family: Family, config: Any, shards: Any, lanes: int, pages: int, page: int, dtype: jnp.dtype
) -> LaneState:
    """Shape and dtype of every leaf on one rank."""

    def one_rank() -> LaneState:
        streams = jnp.zeros((lanes, config.streams * config.hidden), jnp.float32)
        return LaneState(cache=family.empty_cache(config, shards, lanes, pages, page, dtype), streams_LN=streams)

    return jax.eval_shape(one_rank)


def state_kinds(family: Family, state: LaneState) -> LaneState:
    """What each leaf of the lanes is; a leaf that nobody described is an error of the tree's structure."""
    return LaneState(cache=family.cache_kinds(state.cache), streams_LN=Leaf.LANE)


def emptied(state: LaneState) -> LaneState:
    """New zeros for every leaf, in place of buffers that a program took over and did not give back."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), state)


def keep_newest(
    streams_LN: Float[Array, "L N"], places: RowPlaces, streams_BN: Float[Array, "B N"]
) -> Float[Array, "L N"]:
    """Stores the streams of the last certain row of every lane that has one in this tile."""
    rows, lanes = streams_BN.shape[0], streams_LN.shape[0]
    certain = places.live_B & ~places.speculative_B
    last_L = jnp.full((lanes,), -1, jnp.int32)
    row_B = jnp.arange(rows, dtype=jnp.int32)
    last_L = last_L.at[jnp.where(certain, places.lane_B, lanes)].max(row_B, mode="drop")
    return jnp.where((last_L >= 0)[:, None], streams_BN[jnp.maximum(last_L, 0)], streams_LN)


def commit(
    family: Family, config: Any, shards: Any, params: Any, state: LaneState, length_L: Int[Array, " L"]
) -> LaneState:
    """Takes accepted rows of the last window into the recurrent states; lane l then stands at length_L[l] rows.

    A lane that is already there stays as it is; one with 0 is emptied.
    """
    return replace(state, cache=family.commit(params, config, shards, state.cache, length_L))
