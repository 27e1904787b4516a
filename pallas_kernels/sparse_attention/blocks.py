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
        part = jnp.where(block < seen_B[:, None], total * scale, jnp.float32(-1))
        return jax.lax.dynamic_update_slice(scores, part, (0, i * CHUNK))

    chunks = (jnp.max(seen_B) + (CHUNK - 1)) // CHUNK
    scores = jnp.full((rows, padded), -1, jnp.float32)
    return jax.lax.fori_loop(0, chunks, chunk, scores)[:, :blocks]


def keep_blocks(score_BN: Float[Array, "B N"], keep: int) -> tuple[Int[Array, "B K"], Int[Array, " B"]]:
    """Returns the kept block ids of each row, ascending, and how many of them count; the rest are N."""
    blocks = score_BN.shape[1]
    score, block = jax.lax.top_k(score_BN, min(keep, blocks))
    kept = score >= 0
    return jnp.sort(jnp.where(kept, block, blocks), axis=-1), jnp.sum(kept, axis=-1, dtype=jnp.int32)


def _batched_dot(q_BHD: Array, k_BND: Array) -> Array:
    return jax.lax.dot_general(
        q_BHD,
        k_BND,
        (((2,), (2,)), ((0,), (0,))),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
