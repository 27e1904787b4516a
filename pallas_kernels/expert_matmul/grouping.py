"""Traced: which rows meet which expert, in tiles, every distinct expert's rows side by side."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from pallas_kernels.row_tiles import ROW_TILE


@struct.dataclass
class Groups:
    """tile_expert [T]: expert of each tile. tile_pair [T, height]: flat (row, slot) of each place, -1 where empty.

    count: tiles in use, they come first.
    """

    tile_expert: jax.Array
    tile_pair: jax.Array
    count: jax.Array


def group_rows(expert_BA: Int[Array, "B A"], experts: int, height: int = ROW_TILE) -> Groups:
    """Sorts (row, slot) pairs by expert, stably, and cuts each expert's run into tiles.

    An id of `experts` stands for a row that takes no part. height: rows of a tile.
    """
    pairs = expert_BA.size
    most = min(experts, pairs) + pairs // height
    order = jnp.argsort(expert_BA.reshape(-1), stable=True)
    expert = expert_BA.reshape(-1)[order]
    count_E = jnp.zeros((experts,), jnp.int32).at[expert].add(1, mode="drop")
    tiles_E = (count_E + (height - 1)) // height
    first_tile_E = jnp.cumsum(tiles_E) - tiles_E
    first_pair_E = jnp.cumsum(count_E) - count_E
    safe = jnp.minimum(expert, experts - 1)
    rank = jnp.arange(pairs, dtype=jnp.int32) - first_pair_E[safe]
    tile = jnp.where(expert < experts, first_tile_E[safe] + rank // height, most)
    return Groups(
        tile_expert=jnp.zeros((most,), jnp.int32).at[tile].set(expert, mode="drop"),
        tile_pair=jnp.full((most, height), -1, jnp.int32).at[tile, rank % height].set(order, mode="drop"),
        count=jnp.sum(tiles_E),
    )
