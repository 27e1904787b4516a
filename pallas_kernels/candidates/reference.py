"""Traced side: the k largest entries of a row, found in two stages. Public edge: op.py."""

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32, Int32

MOST_COLUMNS = 128


def block_columns(vocabulary: int, count: int) -> int:
    """Columns of a block: the power of two near sqrt(vocabulary / count), where both stages sort about as much.

    It decides speed alone: the selection is exact for any width.
    """
    return min(MOST_COLUMNS, 1 << round(math.log2(vocabulary / count) / 2))


def top_candidates_reference(
    values_BV: Float32[Array, "B V"], count: int
) -> tuple[Float32[Array, "B K"], Int32[Array, "B K"]]:
    """See `op.top_candidates`.

    First the `count` blocks with the largest maxima, ties to the lower block: any entry outside them has `count`
    entries before it, one in each chosen block. Then the entries of those blocks, laid out in id order, so that
    position breaks ties as ids do.
    """
    rows, vocabulary = values_BV.shape
    # A select: the compiler folds x + 0.0 away, and top_k would rank +0 above -0.
    values_BV = jnp.where(values_BV == 0, jnp.float32(0), values_BV)
    if vocabulary <= 4 * count:  # two stages would sort no less
        return _largest(values_BV, count)
    columns = block_columns(vocabulary, count)
    padding = -vocabulary % columns
    blocks_BNC = jnp.pad(values_BV, ((0, 0), (0, padding)), constant_values=-jnp.inf).reshape(rows, -1, columns)
    _, chosen_BK = _largest(blocks_BNC.max(axis=2), count)
    chosen_BK = jnp.sort(chosen_BK, axis=1)
    pool_BKC = jnp.take_along_axis(blocks_BNC, chosen_BK[:, :, None], axis=1)
    largest_BK, slot_BK = _largest(pool_BKC.reshape(rows, count * columns), count)
    block_BK = jnp.take_along_axis(chosen_BK, slot_BK // columns, axis=1)
    return largest_BK, block_BK * columns + slot_BK % columns


def _largest(values_BV: Float32[Array, "B V"], count: int) -> tuple[Float32[Array, "B K"], Int32[Array, "B K"]]:
    largest_BK, index_BK = lax.top_k(values_BV, count)  # equal entries in index order, by its definition
    return largest_BK, index_BK.astype(jnp.int32)
