"""Traced: rows of caches that lie in pages, found by lane and absolute position."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int


@struct.dataclass
class PageTable:
    """pages_BP: int32, the pages of each row's lane in order, -1 where it has none. page: positions a page holds."""

    pages_BP: jax.Array
    page: int = struct.field(pytree_node=False)

    def has_page(self, slot_B: Int[Array, " B"]) -> Bool[Array, " B"]:
        """Whether each row's lane has a page there; a row without one is not stored."""
        slot = jnp.clip(slot_B, 0, self.pages_BP.shape[1] - 1)
        return jnp.take_along_axis(self.pages_BP, slot[:, None], axis=1)[:, 0] >= 0

    def units(self, unit_BU: Int[Array, "B U"], per_page: int) -> Int[Array, "B U"]:
        """Flat index of units (rows or blocks, `per_page` a page) of each row's lane; clipped into the table."""
        slot = jnp.clip(unit_BU // per_page, 0, self.pages_BP.shape[1] - 1)
        page = jnp.take_along_axis(self.pages_BP, slot, axis=1)
        return jnp.maximum(page, 0) * per_page + unit_BU % per_page


def pool_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """How a pool stores values of `dtype`: bfloat16 as its bits.

    CPU programs widen a whole bfloat16 array to update one row of it; integers stay in place.
    """
    return jnp.dtype(jnp.uint16) if dtype == jnp.bfloat16 else jnp.dtype(dtype)


def value_dtype(pool: Array) -> jnp.dtype:
    """The dtype of the values that a pool stores."""
    return jnp.dtype(jnp.bfloat16) if pool.dtype == jnp.uint16 else pool.dtype


def _write(pool: Array, flat_B: Array, live_B: Array, value: Array) -> Array:
    units = pool.reshape(-1, *pool.shape[2:])
    stored = value.astype(value_dtype(pool))
    if stored.dtype != pool.dtype:
        stored = jax.lax.bitcast_convert_type(stored, pool.dtype)
    return units.at[jnp.where(live_B, flat_B, units.shape[0])].set(stored, mode="drop").reshape(pool.shape)


def write_rows(
    pool: Float[Array, "P S ..."], table: PageTable, position_B: Int[Array, " B"], live_B: Bool[Array, " B"], row: Array
) -> Array:
    """Stores each live row's value at its position; the rest of the pool stays."""
    live_B = live_B & table.has_page(position_B // table.page)
    return _write(pool, table.units(position_B[:, None], table.page)[:, 0], live_B, row)


def write_blocks(
    pool: Float[Array, "P S ..."], table: PageTable, block_B: Int[Array, " B"], done_B: Bool[Array, " B"], key: Array
) -> Array:
    """Stores the pooled key of each block that a row has completed."""
    done_B = done_B & table.has_page(block_B // pool.shape[1])
    return _write(pool, table.units(block_B[:, None], pool.shape[1])[:, 0], done_B, key)


def read_units(pool: Array, flat_BU: Int[Array, "B U"]) -> Array:
    """Gathers units by flat index: [B, U, ...], in the dtype of the values."""
    units = pool.reshape(-1, *pool.shape[2:])[flat_BU]
    return units if pool.dtype == value_dtype(pool) else jax.lax.bitcast_convert_type(units, value_dtype(pool))
