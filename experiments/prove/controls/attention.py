"""Traced: wrong twins of sparse attention: pages, pooled blocks, selection, parts. Read next: experts.py."""

from importlib import import_module
from unittest.mock import patch

import jax
import jax.numpy as jnp

from experiments.prove.controls.control import Control, Plant, planted
from experiments.prove.controls.streams import streams
from fnx_jax.lanes import layered
from pallas_kernels import sparse_attention as op
from pallas_kernels.elementary import exp
from pallas_kernels.sparse_attention.pages import PageTable, read_units
from pallas_kernels.tree_sum import tree_sum

PARTS = import_module("pallas_kernels.sparse_attention.attend")
ATTEND, BLOCK_SCORES, KEEP_BLOCKS, WRITE_BLOCKS = op.attend, op.block_scores, op.keep_blocks, op.write_blocks


def pages_of_the_first_lane(pages_BP, page):
    """The page table of a tile's first row, for all its rows."""
    return PageTable(pages_BP=jnp.broadcast_to(pages_BP[:1], pages_BP.shape), page=page)


def blocks_written_once(pool, table, block_B, done_B, key):
    """A pooled key that is there already stays, whatever raw keys have come since."""
    flat_B = table.units(block_B[:, None], pool.shape[1])[:, 0]
    held_B = jnp.any(pool.reshape(-1, pool.shape[2])[flat_B] != 0, axis=1)
    return WRITE_BLOCKS(pool, table, block_B, done_B & ~held_B, key)


def scores_of_the_open_block(q_BHD, key_PSD, table, seen_B):
    """Scores the block that the row itself is in, complete or not."""
    return BLOCK_SCORES(q_BHD, key_PSD, table, seen_B + 1)


def keep_the_open_block(score_BN, seen_B, keep):
    """Lets the block that the row itself is in be kept."""
    return KEEP_BLOCKS(score_BN, seen_B + 1, keep)


def parts_by_company(q_BHK, key_PSGK, value_PSGK, table, kept_BK, count_B, position_B, block):
    """Cuts kept blocks into parts of one where some row of the tile stands far enough, into parts of 16 elsewhere."""

    def in_parts(size: int) -> jax.Array:
        with patch.object(PARTS, "PART", size):
            return ATTEND(q_BHK, key_PSGK, value_PSGK, table, kept_BK, count_B, position_B, block)

    return jax.lax.cond(jnp.max(position_B) < 20, lambda: in_parts(1), lambda: in_parts(16))


def fold_unguarded(q, key_PSGK, value_PSGK, table, position_BN, real_BN, carry):
    """A part whose masked values are weighted by zero, and are not zeros themselves."""
    highest, total, out = carry
    flat = table.units(position_BN, table.page)
    keys, values = read_units(key_PSGK, flat), read_units(value_PSGK, flat)
    real = real_BN[:, None, None, :]
    scores = jnp.where(real, PARTS._dot(q, keys, 3, 3), jnp.float32(PARTS._LOW))
    now = jnp.maximum(highest, jnp.max(scores, axis=-1))
    weight = jnp.where(real, exp(scores - now[..., None]), jnp.float32(0))
    shrink = exp(highest - now)
    outs = out * shrink[..., None] + PARTS._dot(weight.astype(values.dtype), values, 3, 1)
    some = jnp.any(real_BN, axis=1)[:, None, None]
    return (
        jnp.where(some, now, highest),
        jnp.where(some, total * shrink + tree_sum(weight), total),
        jnp.where(some[..., None], outs, out),
    )


CONTROLS: tuple[Control, ...] = (
    planted(
        "pages_of_a_neighbour",
        "4",
        "rows read and write the pages of their tile's first lane",
        streams,
        Plant(layered, "PageTable", pages_of_the_first_lane),
    ),
    planted(
        "stale_pooled_block",
        "4",
        "a block's pooled key is not written again after a cut behind its end",
        streams,
        Plant(op, "write_blocks", blocks_written_once),
    ),
    planted(
        "open_block_visible",
        "4",
        "the pooled key of a block that is not complete takes part in the selection",
        streams,
        Plant(op, "block_scores", scores_of_the_open_block),
        Plant(op, "keep_blocks", keep_the_open_block),
    ),
    planted(
        "parts_by_company",
        "3.3",
        "attention cuts its parts by the longest context in the tile",
        streams,
        Plant(op, "attend", parts_by_company),
    ),
    planted(
        "masked_values_unguarded",
        "3",
        "values behind the mask are multiplied by zero, so a NaN of another stream passes",
        streams,
        Plant(PARTS, "_fold_part", fold_unguarded),
    ),
)
