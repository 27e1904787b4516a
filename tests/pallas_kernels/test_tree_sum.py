"""Sums in a written order: the halving tree, bit for bit. The row rule of all ops: tests/sweep."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.tree_sum import product_sum, tree_sum


def halved(x: np.ndarray) -> np.ndarray:
    """The tree over the last axis in NumPy, float32."""
    width = 1 << max(x.shape[-1] - 1, 0).bit_length()
    x = np.concatenate([x, np.zeros((*x.shape[:-1], width - x.shape[-1]), np.float32)], axis=-1)
    while x.shape[-1] > 1:
        low, high = np.split(x, 2, axis=-1)
        x = low + high
    return x[..., 0]


def neighbours(x: np.ndarray) -> np.ndarray:
    """A wrong twin: another balanced tree."""
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return x[..., 0]


def same(found: jax.Array, wanted: np.ndarray) -> bool:
    return np.array_equal(np.asarray(found).view(np.uint32), wanted.view(np.uint32))


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100])
def test_a_sum_follows_the_halving_tree(size):
    x = normal(4, size)
    assert same(jax.jit(tree_sum)(x), halved(x))


def test_any_axis_is_summed_alike():
    x = normal(3, 5, 6)
    found = jax.jit(lambda x: [tree_sum(x, axis) for axis in (0, 1, -3)])(x)
    wanted = [halved(np.moveaxis(x, axis, -1)) for axis in (0, 1, 0)]
    assert all(same(a, b) for a, b in zip(found, wanted, strict=True))


def test_products_are_rounded_before_they_are_added():
    a, b = normal(8, 40), normal(8, 41)[:, :40]
    found = jax.jit(product_sum)(a, b)
    assert same(found, halved(a * b))
    np.testing.assert_allclose(found, (a.astype(np.float64) * b).sum(axis=-1), atol=1e-5)


def test_another_tree_is_told_apart():
    x = normal(16, 64)
    assert not same(jax.jit(tree_sum)(x), neighbours(x))


@pytest.mark.parametrize(("values", "wanted"), [([-0.0, -0.0], -0.0), ([-0.0, -0.0, -0.0], 0.0), ([-0.0, 0.0], 0.0)])
def test_signed_zeros_add_as_the_tree_says(values, wanted):
    x = np.array([values], np.float32)
    assert same(jax.jit(tree_sum)(x), np.array([wanted], np.float32)) and same(jnp.asarray(halved(x)), halved(x))


def test_an_empty_axis_sums_to_zero():
    assert jax.jit(tree_sum)(np.zeros((2, 0), np.float32)).tolist() == [0.0, 0.0]
