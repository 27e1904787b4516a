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
from pallas_kernels.gated_delta.rows import recent_taps, ring_rows, write_ring


@struct.dataclass
class LaneState:
    """cache: the family's, paged rows and per-lane leaves.

    streams_LRN: float32, a ring of the residual streams of each lane's newest rows: a draft head pairs a row's with
    the token after it.
    """

    cache: Any
    streams_LRN: Any


def empty_state(
    family: Family, config: Any, shards: Any, lanes: int, pages: int, page: int, dtype: jnp.dtype, mesh: Mesh
) -> LaneState:
    """Allocates the lanes once, each rank's share on that rank; nothing is allocated per request."""
    shapes = state_shapes(family, config, shards, lanes, pages, page, dtype)
    layout = LaneState(cache=family.cache_layout(shapes.cache, shards), streams_LRN=SAME)
    return jax.tree.map(lambda leaf, spec: zeros(leaf.shape, leaf.dtype, spec, mesh), shapes, layout)


def state_shapes(
    family: Family, config: Any, shards: Any, lanes: int, pages: int, page: int, dtype: jnp.dtype
) -> LaneState:
    """Shape and dtype of every leaf on one rank."""

    def one_rank() -> LaneState:
        streams = jnp.zeros((lanes, ring_rows(1), config.streams * config.hidden), jnp.float32)
        return LaneState(cache=family.empty_cache(config, shards, lanes, pages, page, dtype), streams_LRN=streams)

    return jax.eval_shape(one_rank)


def state_kinds(family: Family, state: LaneState) -> LaneState:
    """What each leaf of the lanes is; a leaf that nobody described is an error of the tree's structure."""
    return LaneState(cache=family.cache_kinds(state.cache), streams_LRN=Leaf.RING)


def emptied(state: Any) -> Any:
    """New zeros for every leaf, in place of buffers that a program took over and did not give back."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), state)


def pair_up(
    streams_LRN: Float[Array, "L R N"], places: RowPlaces, streams_BN: Float[Array, "B N"]
) -> tuple[Float[Array, "B N"], Float[Array, "L R N"]]:
    """Finds the streams of the row before each row, and stores the rows' own."""
    before = recent_taps(streams_LRN, places, streams_BN, taps=2, dilation=1)[:, 0]
    return before, write_ring(streams_LRN, places, streams_BN)


def commit(
    family: Family, config: Any, shards: Any, params: Any, state: LaneState, length_L: Int[Array, " L"]
) -> LaneState:
    """Takes accepted rows of the last window into the recurrent states; lane l then stands at length_L[l] rows.

    A lane that is already there stays as it is; one with 0 is emptied.
    """
    return replace(state, cache=family.commit(params, config, shards, state.cache, length_L))
