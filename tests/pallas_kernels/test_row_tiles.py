"""Tiles keep a row's bits from the number of rows, where a bare dot lets them through. More: test_exl3_row_tiles.py."""

import jax
import numpy as np
import pytest

from pallas_kernels.row_tiles import row_tiles

RNG = np.random.default_rng(0)
WEIGHT_IO = RNG.standard_normal((256, 128)).astype(np.float32)
ROWS = RNG.standard_normal((80, 256)).astype(np.float32)


@jax.jit
def bare(x: jax.Array) -> jax.Array:
    return jax.lax.dot(x, WEIGHT_IO, precision=jax.lax.Precision.HIGHEST)


@jax.jit
def tiled(x: jax.Array) -> jax.Array:
    return row_tiles(bare, x)


@pytest.mark.parametrize("rows", [1, 2, 16, 37])
def test_any_number_of_rows_gives_equal_bits(rows):
    assert np.array_equal(tiled(ROWS[:rows]), np.asarray(tiled(ROWS))[:rows])


def test_a_bare_dot_is_told_apart():
    whole = np.asarray(bare(ROWS))
    assert any(not np.array_equal(bare(ROWS[:rows]), whole[:rows]) for rows in (1, 2, 16))


def test_rows_of_nan_in_the_same_tile_reach_nobody():
    poisoned = ROWS.copy()
    poisoned[3::2] = np.nan
    kept = [0, 1, 2, *range(4, 80, 2)]
    assert np.array_equal(np.asarray(tiled(poisoned))[kept], np.asarray(tiled(ROWS))[kept])


def test_no_rows_give_no_rows():
    assert tiled(ROWS[:0]).shape == (0, 128)
