"""Tiles keep a row's bits from the number of rows, where a bare dot lets them through. More: test_exl3_row_tiles.py."""

import jax
import numpy as np
import pytest

from pallas_kernels.row_tiles import expert_height, heights_are_free, row_dot, row_tiles

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


def outputs_first(dtype: str, outputs: int):
    """A dot with a weight [out, in] by row_dot, the same tile by tile, and rows for them."""
    weight = RNG.standard_normal((outputs, 256)).astype(dtype)
    precision = jax.lax.Precision.HIGHEST if dtype == "float32" else None

    def dot(x: jax.Array) -> jax.Array:
        axes = (((1,), (1,)), ((), ()))
        return jax.lax.dot_general(x, weight, axes, precision=precision, preferred_element_type=np.float32)

    free, tiles = jax.jit(lambda x: row_dot(dot, x, outputs)), jax.jit(lambda x: row_tiles(dot, x))
    return free, tiles, jax.jit(dot), RNG.standard_normal((96, 256)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("outputs", [1, 2, 16, 384])
def test_free_heights_have_the_bits_of_tiles(dtype, outputs):
    assert heights_are_free()
    free, tiles, _, rows = outputs_first(dtype, outputs)
    wanted = np.asarray(tiles(rows))
    for height in (0, 1, 2, 3, 5, 8, 17, 64, 96):
        assert np.array_equal(free(rows[:height]), wanted[:height]), height


def test_one_row_and_one_output_are_what_free_heights_leave_out():
    lone_row, lone_output = outputs_first("float32", 384), outputs_first("float32", 1)
    assert not np.array_equal(lone_row[2](lone_row[3][:1]), np.asarray(lone_row[1](lone_row[3]))[:1])
    found = [lone_output[2](lone_output[3][:height]) for height in (2, 3, 5, 17)]
    whole = np.asarray(lone_output[1](lone_output[3]))
    assert not all(np.array_equal(part, whole[: len(part)]) for part in found)


def test_tiles_of_experts_are_as_high_as_their_rows_on_average():
    assert [expert_height(pairs, 64) for pairs in (4, 64, 65, 512, 2048, 1 << 20)] == [2, 2, 2, 8, 32, 64]
