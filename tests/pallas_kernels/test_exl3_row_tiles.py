"""Rows are cut into tiles of one height, padded with zeros, and come back in order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.row_tiles import ROW_TILE, pad_rows, padded_rows, row_tiles


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 32, 40])
def test_every_tile_has_one_height_and_rows_keep_their_order(rows):
    heights = []

    def doubled(tile):
        heights.append(tile.shape)
        return tile * 2

    x = jnp.arange(rows * 3, dtype=jnp.float32).reshape(rows, 3)
    assert np.array_equal(row_tiles(doubled, x), 2 * x)
    assert set(heights) == {(ROW_TILE, 3)}


def test_the_last_tile_is_filled_with_zeros():
    sums = row_tiles(lambda tile: jnp.broadcast_to(tile.sum(), (ROW_TILE, 1)), jnp.ones((17, 2)))
    assert sums[:, 0].tolist() == [32.0] * 16 + [2.0]


@pytest.mark.parametrize(
    ("rows", "multiple", "wanted"), [(0, 16, 16), (1, 16, 16), (16, 16, 16), (17, 16, 32), (65, 64, 128)]
)
def test_padding_reaches_the_next_multiple(rows, multiple, wanted):
    assert padded_rows(rows, multiple) == wanted
    padded = pad_rows(jnp.ones((rows, 2)), multiple)
    assert padded.shape == (wanted, 2) and not padded[rows:].any()


def test_a_tile_among_others_has_the_bits_it_has_alone():
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((2, 64, 64)).astype(np.float32)
    tiled = jax.jit(lambda x: row_tiles(lambda tile: jax.lax.dot(tile, w.T), x))
    whole = np.asarray(tiled(x))
    for first in range(0, 64, 16):
        assert np.array_equal(tiled(x[first : first + 16]), whole[first : first + 16])
    assert np.array_equal(tiled(x[5:6]), whole[5:6])
