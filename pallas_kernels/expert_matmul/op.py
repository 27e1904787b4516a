"""Traced: the routed experts of a batch of rows.

    out[b, a] = down_e(silu(gate_e(x[b])) * up_e(x[b])),   e = expert_BA[b, a]

Weights lie in pools of equal shape and width; a *line* is one place of a pool, and the map says where each expert's
projections are now. Every distinct expert is read once a call, whatever rows it serves.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from pallas_kernels.dense_matmul import Weight, linear
from pallas_kernels.expert_matmul.grouping import group_rows
from pallas_kernels.row_tiles import expert_height

Pools = tuple[Weight, ...]
"""Weights with a leading line axis, one entry a width. A plain bfloat16 pool may be given as its bits, uint16."""


@struct.dataclass
class ExpertLines:
    """The pools of each projection of one layer."""

    gate: Pools
    up: Pools
    down: Pools


@struct.dataclass
class LineMap:
    """pool_PE, line_PE: [3, E] int32, where gate, up and down of each expert are: which pool, which line."""

    pool_PE: jax.Array
    line_PE: jax.Array


def resident_map(pool_PE: Int[Array, "3 E"], line_PE: Int[Array, "3 E"]) -> LineMap:
    """The map of a layer whose experts all have a line."""
    return LineMap(pool_PE=jnp.asarray(pool_PE, jnp.int32), line_PE=jnp.asarray(line_PE, jnp.int32))


def expert_matmul(
    x_BD: Float[Array, "B D"], expert_BA: Int[Array, "B A"], lines: ExpertLines, line_map: LineMap, ffn: int
) -> Float[Array, "B A D"]:
    """Runs each row through each of its experts.

    Args:
      x_BD: float32. expert_BA: ids; the number of experts stands for "no expert" and its slot stays zero.
      lines, line_map: this layer's pools and where each expert lies in them.
      ffn: width between the projections; what a padded weight yields beyond it is cut.
    Returns: float32, one output a (row, slot), ready for the leaf tree.
    """
    slots = expert_BA.shape[1]
    experts = line_map.line_PE.shape[1]
    groups = group_rows(expert_BA, experts, expert_height(expert_BA.size, experts))
    out = jnp.zeros((expert_BA.size, x_BD.shape[1]), jnp.float32)

    def tile(i: jax.Array, out: jax.Array) -> jax.Array:
        pair = groups.tile_pair[i]
        pool, line = line_map.pool_PE[:, groups.tile_expert[i]], line_map.line_PE[:, groups.tile_expert[i]]
        x = jnp.where(pair[:, None] >= 0, x_BD[jnp.maximum(pair, 0) // slots], jnp.float32(0))
        hidden = jax.nn.silu(_project(x, lines.gate, pool[0], line[0])) * _project(x, lines.up, pool[1], line[1])
        y = _project(hidden[:, :ffn], lines.down, pool[2], line[2])[:, : x_BD.shape[1]]
        return out.at[jnp.where(pair >= 0, pair, expert_BA.size)].set(y, mode="drop")

    out = jax.lax.fori_loop(0, groups.count, tile, out)
    return out.reshape(*expert_BA.shape, x_BD.shape[1])


def take_line(pool: Weight, line: jax.Array) -> Weight:
    """One line of a pool; a pool of bfloat16 bits (uint16) yields bfloat16."""

    def take(leaf: jax.Array) -> jax.Array:
        one = leaf[line]
        return jax.lax.bitcast_convert_type(one, jnp.bfloat16) if one.dtype == jnp.uint16 else one

    return jax.tree.map(take, pool)


def _project(x: Float[Array, "B I"], pools: Pools, pool: jax.Array, line: jax.Array) -> Float[Array, "B O"]:
    branches = [lambda x, line, weight=weight: linear(x, take_line(weight, line)) for weight in pools]
    if len(branches) == 1:
        return branches[0](x, line)
    return jax.lax.switch(pool, branches, x, line)
