"""Traced: which blocks of its own past a row keeps.

score_B = sum over index heads of relu(q_h . key_B) / sqrt(d);  the highest scores stay, ties to the lower block
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.sparse_attention.pages import PageTable, read_units

CHUNK = 128
"""Blocks scored at a time."""


def block_means(
    raw_PSD: Float[Array, "P S D"], table: PageTable, block_B: Int[Array, " B"], block: int
) -> Float[Array, "B D"]:
    """Mean of the raw keys of one block a row, keys added in order. float32."""
    position = block_B[:, None] * block + jnp.arange(block, dtype=jnp.int32)[None, :]
    keys = read_units(raw_PSD, table.units(position, table.page)).astype(jnp.float32)
    total = keys[:, 0]
    for key in range(1, block):
        total = total + keys[:, key]
    return total / jnp.float32(block)


def block_scores(
    q_BHD: Float[Array, "B H D"],
    key_PSD: Float[Array, "P S D"],
    table: PageTable,
    seen_B: Int[Array, " B"],
) -> Float[Array, "B N"]:
    """Scores every block of the page table, -1 from block seen_B on.

    Args: q_BHD: turned queries, float32. key_PSD: pooled keys, S blocks a page. seen_B: complete blocks of the row.
    """
    rows, heads, size = q_BHD.shape
    blocks = table.pages_BP.shape[1] * key_PSD.shape[1]
    padded = -(-blocks // CHUNK) * CHUNK
    scale = jnp.float32(1 / math.sqrt(size))

    def chunk(i: jax.Array, scores: jax.Array) -> jax.Array:
        block = i * CHUNK + jnp.arange(CHUNK, dtype=jnp.int32)[None, :]
        keys = read_units(key_PSD, table.units(jnp.broadcast_to(block, (rows, CHUNK)), key_PSD.shape[1]))
        dots = jax.nn.relu(_batched_dot(q_BHD, keys))
        total = dots[:, 0]
        for head in range(1, heads):
            total = total + dots[:, head]
        score = jnp.where(total == 0, jnp.float32(0), total * scale)  # -0 is no lower than 0
        part = jnp.where(block < seen_B[:, None], score, jnp.float32(-1))
        return jax.lax.dynamic_update_slice(scores, part, (0, i * CHUNK))

    chunks = (jnp.max(seen_B) + (CHUNK - 1)) // CHUNK
    scores = jnp.full((rows, padded), -1, jnp.float32)
    return jax.lax.fori_loop(0, chunks, chunk, scores)[:, :blocks]


def keep_blocks(
    score_BN: Float[Array, "B N"], seen_B: Int[Array, " B"], keep: int
) -> tuple[Int[Array, "B K"], Int[Array, " B"]]:
    """Chooses the `keep` highest scores among each row's first seen_B blocks, ties to the lower block.

    Args: score_BN: +0 or above where a block is seen. keep: at most N of them count.
    Returns: kept block ids ascending, K = min(keep, N) places of which the first count_B are real and the rest N; and
      count_B.
    """
    rows, blocks = score_BN.shape
    count_B = jnp.minimum(seen_B, keep)
    places = jnp.arange(min(keep, blocks), dtype=jnp.int32)[None, :]
    kept = jax.lax.cond(
        jnp.any(seen_B > keep),
        lambda: _highest(score_BN, seen_B, count_B, places.shape[1]),
        lambda: jnp.broadcast_to(places, (rows, places.shape[1])),
    )
    return jnp.where(places < count_B[:, None], kept, blocks), count_B


def _highest(score_BN: Array, seen_B: Array, count_B: Array, places: int) -> Array:
    """Ids of the count_B highest, ascending. Only counts are taken, so no order of evaluation can matter."""
    block = jnp.arange(score_BN.shape[1], dtype=jnp.int32)[None, :]
    # Bits of floats that are not negative ascend as the floats do.
    rank = jax.lax.bitcast_convert_type(score_BN, jnp.int32)
    rank = jnp.where(block < seen_B[:, None], rank, -1)

    def try_bit(i: jax.Array, border_B: jax.Array) -> jax.Array:
        higher_B = border_B | (jnp.int32(1) << (30 - i))
        enough = jnp.sum(rank >= higher_B[:, None], axis=1, dtype=jnp.int32) >= count_B
        return jnp.where(enough, higher_B, border_B)

    border_B = jax.lax.fori_loop(0, 31, try_bit, jnp.zeros_like(count_B))
    above, level = rank > border_B[:, None], rank == border_B[:, None]
    room_B = count_B - jnp.sum(above, axis=1, dtype=jnp.int32)
    kept = above | (level & (jnp.cumsum(level, axis=1, dtype=jnp.int32) <= room_B[:, None]))
    filled_BN = jnp.cumsum(kept, axis=1, dtype=jnp.int32)
    return jax.vmap(lambda filled: jnp.searchsorted(filled, jnp.arange(1, places + 1, dtype=jnp.int32)))(filled_BN)


def _batched_dot(q_BHD: Array, k_BND: Array) -> Array:
    return jax.lax.dot_general(
        q_BHD,
        k_BND,
        (((2,), (2,)), ((0,), (0,))),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
