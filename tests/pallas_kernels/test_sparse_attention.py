"""Paged sparse attention: what a row keeps and reads, and that nothing else reaches it. The row rule: tests/sweep."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels.sparse_attention import (
    PageTable,
    attend,
    block_means,
    block_scores,
    keep_blocks,
    pool_dtype,
    write_blocks,
    write_rows,
)
from pallas_kernels.sparse_attention.shapes import SMALL_SHAPES
from tests.sweep.case import unequal

SHAPE = SMALL_SHAPES["small"]
BLOCK, KEPT, PAGE, PAGES = SHAPE.block, SHAPE.kept, SHAPE.page, SHAPE.pages
BLOCKS, LENGTH = PAGE * PAGES // BLOCK, PAGE * PAGES
RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


KEYS, VALUES = normal(LENGTH, SHAPE.kv_heads, SHAPE.size), normal(LENGTH, SHAPE.kv_heads, SHAPE.size)
POOLED, RAW = normal(BLOCKS, SHAPE.index_size), normal(LENGTH, SHAPE.index_size)
EDGES = np.array([1, 2, 3, 4, 5, 63, 64, 65, 79, 80, 81, 83, 84, 85, 160, 192], np.int32)
"""Tokens seen: around a block, a part of sixteen blocks, and the budget of twenty."""
QUERY, INDEX_QUERY = normal(16, SHAPE.heads, SHAPE.size), normal(16, SHAPE.index_heads, SHAPE.index_size)


def orders(seed: int) -> np.ndarray:
    """Pages of a lane, in no order, among twice as many."""
    return np.random.default_rng(seed).permutation(2 * PAGES)[:PAGES].astype(np.int32)


def laid(units: np.ndarray, order: np.ndarray) -> np.ndarray:
    """A pool with a lane's units in the pages of `order` and NaN in the rest."""
    per_page = len(units) // PAGES
    pool = np.full((2 * PAGES, per_page, *units.shape[1:]), np.nan, units.dtype)
    pool[order] = units.reshape(PAGES, per_page, *units.shape[1:])
    return pool


def table(order: np.ndarray, rows: int = 16) -> PageTable:
    return PageTable(jnp.asarray(np.tile(order, (rows, 1))), PAGE)


@jax.jit
def scored(query: jax.Array, pooled: jax.Array, pages: PageTable, seen: jax.Array) -> tuple[jax.Array, ...]:
    scores = block_scores(query, pooled, pages, seen)
    return scores, *keep_blocks(scores, seen, KEPT)


@jax.jit
def attended(query, keys, values, pages: PageTable, kept, count, position) -> jax.Array:
    return attend(query, keys, values, pages, kept, count, position, BLOCK)


def kept_by_formula(scores: np.ndarray, seen: int, upward: bool = False) -> np.ndarray:
    """Block ids of the highest scores, ties to the lower id (to the higher one in the wrong twin)."""
    ids = np.arange(seen)[::-1] if upward else np.arange(seen)
    return np.sort(ids[np.argsort(-scores[ids], kind="stable")[:KEPT]])


def dense(query: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Attention of one row over the visible tokens, float64."""
    per_group = SHAPE.heads // SHAPE.kv_heads
    keys, values = (np.repeat(x[visible].astype(np.float64), per_group, axis=1) for x in (KEYS, VALUES))
    scores = np.einsum("hk,shk->hs", query, keys) / np.sqrt(SHAPE.size)
    weight = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("hs,shk->hk", weight / weight.sum(axis=1, keepdims=True), values)


@pytest.fixture(scope="module")
def chosen() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, kept ids and counts of rows that see EDGES tokens."""
    order = orders(1)
    return jax.device_get(scored(INDEX_QUERY, laid(POOLED, order), table(order), EDGES // BLOCK))


@pytest.fixture(scope="module")
def out(chosen) -> np.ndarray:
    """Those rows' attention."""
    order = orders(1)
    return np.asarray(
        attended(QUERY, laid(KEYS, order), laid(VALUES, order), table(order), chosen[1], chosen[2], EDGES - 1)
    )


def test_scores_are_the_formula_and_unseen_blocks_have_none(chosen):
    dots = np.maximum(np.einsum("bhd,nd->bhn", INDEX_QUERY, POOLED, dtype=float), 0)
    wanted = dots.sum(axis=1) / np.sqrt(SHAPE.index_size)
    for row, seen in enumerate(EDGES // BLOCK):
        np.testing.assert_allclose(chosen[0][row, :seen], wanted[row, :seen], atol=1e-5)
        assert (chosen[0][row, seen:] == -1).all()


def test_every_row_keeps_its_highest_blocks_up_to_the_budget(chosen):
    scores, kept, count = chosen
    assert count.tolist() == np.minimum(EDGES // BLOCK, KEPT).tolist()
    for row, seen in enumerate(EDGES // BLOCK):
        assert kept[row, : count[row]].tolist() == kept_by_formula(scores[row], seen).tolist()
        assert (kept[row, count[row] :] == BLOCKS).all()
    assert (EDGES // BLOCK > KEPT).any()


@pytest.mark.parametrize("level", ["zero", "one", "steps"])
def test_ties_keep_the_lower_block(level):
    levels = {"zero": np.zeros(BLOCKS), "one": np.ones(BLOCKS), "steps": np.arange(BLOCKS) // 7 % 3}[level]
    scores = np.tile(levels.astype(np.float32), (16, 1))
    seen = np.arange(16, dtype=np.int32) + BLOCKS - 15
    kept, count = jax.device_get(jax.jit(keep_blocks, static_argnums=2)(scores, seen, KEPT))
    wanted = [kept_by_formula(row, n) for row, n in zip(scores, seen, strict=True)]
    assert np.array_equal(kept, wanted) and (count == KEPT).all()
    assert not np.array_equal(kept, [kept_by_formula(row, n, True) for row, n in zip(scores, seen, strict=True)])


def test_blocks_that_no_head_likes_score_plus_zero_and_tie():
    query, pooled = np.abs(INDEX_QUERY), -np.abs(POOLED)
    pooled[::5] *= 0
    seen = np.full(16, BLOCKS, np.int32)
    scores, kept, count = jax.device_get(scored(query, laid(pooled, orders(2)), table(orders(2)), seen))
    assert not scores.view(np.uint32).any()
    assert (kept == np.arange(KEPT)).all() and (count == KEPT).all()


def test_rows_attend_to_kept_blocks_and_the_tail(chosen, out):
    for row, tokens in enumerate(EDGES):
        blocks = chosen[1][row, : chosen[2][row]]
        visible = [*(BLOCK * blocks[:, None] + np.arange(BLOCK)).reshape(-1), *range(tokens // BLOCK * BLOCK, tokens)]
        np.testing.assert_allclose(out[row], dense(QUERY[row], np.array(visible)), atol=1e-5)
        assert (len(visible) == tokens) == (tokens <= BLOCK * KEPT + BLOCK - 1)


def test_a_row_at_a_block_end_may_lose_its_own_token():
    seen, position = np.full(16, 21, np.int32), np.full(16, 83, np.int32)
    scores = np.tile(np.arange(BLOCKS, 0, -1, dtype=np.float32), (16, 1))
    kept, count = jax.device_get(jax.jit(keep_blocks, static_argnums=2)(scores, seen, KEPT))
    order = orders(3)
    found = attended(QUERY, laid(KEYS, order), laid(VALUES, order), table(order), kept, count, position)
    np.testing.assert_allclose(found[0], dense(QUERY[0], np.arange(80)), atol=1e-5)
    assert not np.allclose(found[0], dense(QUERY[0], np.arange(84)), atol=1e-3)


def test_the_order_of_pages_changes_no_bit(chosen, out):
    order = orders(4)
    again = scored(INDEX_QUERY, laid(POOLED, order), table(order), EDGES // BLOCK)
    assert unequal(again, chosen) == 0
    pages = laid(KEYS, order), laid(VALUES, order), table(order)
    assert unequal(attended(QUERY, *pages, chosen[1], chosen[2], EDGES - 1), out) == 0


def test_what_a_row_must_not_read_may_be_nan(chosen, out):
    order = orders(1)
    for row in (7, 9, 13, 14):
        keys, values, pooled = KEYS.copy(), VALUES.copy(), POOLED.copy()
        seen, tokens = EDGES[row] // BLOCK, EDGES[row]
        hidden = np.setdiff1d(np.arange(BLOCKS), chosen[1][row, : chosen[2][row]])
        hidden = hidden[hidden != seen]
        for dirty in (keys, values):
            dirty.reshape(BLOCKS, BLOCK, *dirty.shape[1:])[hidden] = np.nan
            dirty[tokens:] = np.nan
        pooled[seen:] = np.nan
        again = scored(INDEX_QUERY, laid(pooled, order), table(order), EDGES // BLOCK)
        assert unequal(again[1][row], chosen[1][row]) == 0
        pages = laid(keys, order), laid(values, order), table(order)
        found = np.asarray(attended(QUERY, *pages, chosen[1], chosen[2], EDGES - 1))
        assert unequal(found[row], out[row]) == 0
        assert np.isnan(found).any()


def test_parts_without_a_token_leave_signed_zeros_alone(chosen):
    order, short = orders(1), 3
    values = np.full_like(VALUES, -0.0)
    pages = laid(KEYS, order), laid(values, order), table(order)
    together = np.asarray(attended(QUERY, *pages, chosen[1], chosen[2], EDGES - 1))
    few = np.where(np.arange(16) == short, chosen[2], 0).astype(np.int32)
    alone = np.asarray(attended(QUERY, *pages, chosen[1], few, np.where(few, EDGES - 1, 0).astype(np.int32)))
    assert unequal(alone[short], together[short]) == 0


def test_bfloat16_caches_round_operands_and_keep_float32_sums(chosen):
    order = orders(1)
    short = [laid(x.astype(ml_dtypes.bfloat16), order).view(np.uint16) for x in (KEYS, VALUES)]
    found = np.asarray(attended(QUERY, *short, table(order), chosen[1], chosen[2], EDGES - 1))
    for row in (0, 2, 9):
        np.testing.assert_allclose(found[row], dense(QUERY[row], np.arange(EDGES[row])), atol=3e-2)
    with jax.default_matmul_precision("F16_F16_F16"):
        again = attended(QUERY, *short, table(order), chosen[1], chosen[2], EDGES - 1)
    assert unequal(again, found) == 0  # whatever precision jax is set to
    one = np.asarray(jnp.asarray(VALUES[0]).astype(jnp.bfloat16).astype(jnp.float32))
    assert np.array_equal(found[0].reshape(SHAPE.kv_heads, -1, SHAPE.size), np.repeat(one[:, None], 3, axis=1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_written_into_pages_are_read_back_and_nothing_else_moves(dtype):
    order = orders(5)
    stored = pool_dtype(jnp.dtype(dtype))
    pool = np.full((2 * PAGES, PAGE, SHAPE.index_size), 7, stored)
    position, live = np.arange(60, 76, dtype=np.int32), np.arange(16) % 4 != 1
    written = np.asarray(jax.jit(write_rows)(pool, table(order), position, live, RAW[60:76]))
    flat = order[position // PAGE] * PAGE + position % PAGE
    wanted = pool.reshape(-1, SHAPE.index_size).copy()
    wanted[flat[live]] = np.asarray(jnp.asarray(RAW[60:76][live]).astype(dtype)).view(stored)
    assert np.array_equal(written.reshape(wanted.shape), wanted)


def test_block_means_add_keys_in_order_and_a_stale_key_is_told_apart():
    order, blocks = orders(6), np.arange(3, 19, dtype=np.int32)
    means = jax.jit(block_means, static_argnums=3)
    found = means(laid(RAW, order), table(order), blocks, BLOCK)
    keys = RAW.reshape(BLOCKS, BLOCK, -1)[blocks]
    assert unequal(found, (((keys[:, 0] + keys[:, 1]) + keys[:, 2]) + keys[:, 3]) / np.float32(BLOCK)) == 0
    stale = RAW.copy()
    stale[BLOCK - 1 :: BLOCK] = 0
    assert unequal(means(laid(stale, order), table(order), blocks, BLOCK), found)


def test_only_completed_blocks_get_a_pooled_key():
    order, blocks = orders(7), np.arange(16, dtype=np.int32)
    done = np.arange(16) % 3 == 0
    pool = np.zeros((2 * PAGES, PAGE // BLOCK, SHAPE.index_size), np.float32)
    written = np.asarray(jax.jit(write_blocks)(pool, table(order), blocks, done, POOLED[:16]))
    units = written[order].reshape(BLOCKS, -1)
    assert np.array_equal(units[:16], np.where(done[:, None], POOLED[:16], 0)) and not units[16:].any()
