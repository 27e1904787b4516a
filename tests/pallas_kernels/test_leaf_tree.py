"""The expert sum, bit for bit against its definition; devices that own sub-trees give the whole's bits."""

from functools import partial

import jax
import numpy as np
import pytest

from pallas_kernels.leaf_tree import balanced_sum, combine, leaf_sums
from pallas_kernels.leaf_tree.shapes import SMALL_SHAPES

ROWS = 16


def slots(shape, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Outputs, weights, ascending ids (every third row has empty slots, id E, last), the shared expert's output."""
    rng = np.random.default_rng(seed)
    expert = np.sort(np.argsort(rng.random((ROWS, shape.experts)), axis=1)[:, : shape.active], axis=1)
    expert[::3, -shape.active // 2 :] = shape.experts
    out = rng.standard_normal((ROWS, shape.active, shape.hidden)) * 10.0 ** rng.integers(-3, 3, (ROWS, shape.active, 1))
    weight, shared = rng.random((ROWS, shape.active)), rng.standard_normal((ROWS, shape.hidden))
    return out.astype(np.float32), weight.astype(np.float32), expert.astype(np.int32), shared.astype(np.float32)


def definition(shape, out: np.ndarray, weight: np.ndarray, expert: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """One float32 addition after another."""
    leaf = np.zeros((ROWS, shape.leaves, shape.hidden), np.float32)
    for row in range(ROWS):
        for slot in range(out.shape[1]):
            if expert[row, slot] < shape.experts:
                place = expert[row, slot] // (shape.experts // shape.leaves)
                leaf[row, place] = leaf[row, place] + weight[row, slot] * out[row, slot]
    leaf[:, -1] = leaf[:, -1] + shared
    while leaf.shape[1] > 1:
        leaf = leaf[:, 0::2] + leaf[:, 1::2]
    return leaf[:, 0]


def bits(array) -> np.ndarray:
    return np.asarray(array).view(np.uint32)


@pytest.fixture(scope="module", params=SMALL_SHAPES.values(), ids=SMALL_SHAPES)
def shape(request):
    """A tree's shape."""
    return request.param


@pytest.fixture(scope="module")
def whole(shape):
    """The sum on one device."""
    return jax.jit(partial(combine, experts=shape.experts, leaves=shape.leaves))


def test_the_sum_follows_its_definition(shape, whole):
    given = slots(shape)
    assert np.array_equal(bits(whole(*given)), bits(definition(shape, *given)))
    exact = given[3] + np.einsum("bad,ba->bd", given[0], np.where(given[2] < shape.experts, given[1], 0), dtype=float)
    np.testing.assert_allclose(whole(*given), exact, rtol=1e-4, atol=1e-4)


def test_another_order_of_slots_is_told_apart():
    shape = SMALL_SHAPES["one_leaf"]
    out, weight, expert, shared = slots(shape)
    found = definition(shape, out[:, ::-1], weight[:, ::-1], expert[:, ::-1], shared)
    assert not np.array_equal(bits(found), bits(definition(shape, out, weight, expert, shared)))


def test_zeros_of_either_sign_sum_to_plus_zero(shape, whole):
    out, weight, expert, shared = slots(shape)
    found = whole(np.full_like(out, -0.0), weight, expert, np.full_like(shared, -0.0))
    assert not bits(found).any()
    none = whole(out, weight, np.full_like(expert, shape.experts), np.full_like(shared, -0.0))
    assert not bits(none).any()


def test_empty_slots_add_nothing_whatever_they_hold(shape, whole):
    out, weight, expert, shared = slots(shape)
    empty = expert == shape.experts
    dirty = np.where(empty[:, :, None], np.float32(np.nan), out)
    assert empty.any() and np.array_equal(bits(whole(dirty, weight, expert, shared)), bits(whole(*slots(shape))))


@pytest.mark.parametrize("devices", [2, 4])
def test_roots_of_sub_trees_join_to_the_whole(devices):
    shape = SMALL_SHAPES["many_leaves"]
    out, weight, expert, shared = slots(shape, seed=1)
    per_device, leaves = shape.experts // devices, shape.leaves // devices

    @jax.jit
    def joined(out, weight, expert, shared):
        roots = []
        for device in range(devices):
            local = expert - device * per_device
            local = jax.numpy.where((local < 0) | (local >= per_device), per_device, local)
            parts = leaf_sums(out, weight, local, per_device, leaves)
            roots.append(balanced_sum(parts.at[:, -1].add(shared) if device == devices - 1 else parts))
        naive = sum(roots[::-1][1:], roots[-1]) + shared * 0
        return balanced_sum(jax.numpy.stack(roots, axis=1)), naive

    found, naive = joined(out, weight, expert, shared)
    wanted = definition(shape, out, weight, expert, shared)
    assert np.array_equal(bits(found), bits(wanted))
    assert devices == 2 or not np.array_equal(bits(naive), bits(wanted))
