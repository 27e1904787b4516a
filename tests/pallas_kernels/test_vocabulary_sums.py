"""The fixed order of the vocabulary sum: the written tree, any partition, any surroundings."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.vocabulary_sums import block_sums, join_sums
from pallas_kernels.vocabulary_sums.shapes import SHAPES


def logits(rows: int, vocabulary: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(4 * np.random.default_rng(seed).standard_normal((rows, vocabulary)).astype(np.float32))


@jax.jit
def whole(logits_BV: jax.Array) -> jax.Array:
    return join_sums(block_sums(logits_BV, logits_BV.max(axis=1)))


@partial(jax.jit, static_argnums=(1, 2))
def in_parts(logits_BV: jax.Array, parts: int, naive: bool = False) -> jax.Array:
    """As `parts` devices would: partial sums of consecutive slices of whole blocks, gathered, joined."""
    rows, vocabulary = logits_BV.shape
    width = -(-vocabulary // (128 * parts)) * 128
    padded_BV = jnp.pad(logits_BV, ((0, 0), (0, parts * width - vocabulary)), constant_values=-jnp.inf)
    ceiling_B = logits_BV.max(axis=1)
    slices = [padded_BV[:, part * width : (part + 1) * width] for part in range(parts)]
    if naive:
        totals = [jnp.exp(piece - ceiling_B[:, None]).sum(axis=1) for piece in slices]
        return sum(totals[1:], totals[0])
    return join_sums(jnp.concatenate([block_sums(piece, ceiling_B) for piece in slices], axis=1))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_sums_follow_the_written_tree(shape):
    logits_BV = logits(min(shape.rows, 3), shape.vocabulary)
    terms_BV = np.asarray(jnp.exp(logits_BV - logits_BV.max(axis=1, keepdims=True)))
    blocks = -(-shape.vocabulary // 128)
    level = np.pad(terms_BV, ((0, 0), (0, blocks * 128 - shape.vocabulary))).reshape(len(terms_BV), blocks, 128)
    for axis, length in ((2, 128), (1, 1 << (blocks - 1).bit_length())):
        level = np.pad(level, [(0, 0)] * axis + [(0, length - level.shape[axis])] + [(0, 0)] * (2 - axis))
        while level.shape[axis] > 1:
            first, second = np.split(level, 2, axis=axis)
            level = first + second
    assert np.array_equal(whole(logits_BV), level[:, 0, 0])


def test_sums_are_close_to_float64():
    logits_BV = logits(16, 5000)
    exact_B = np.exp(np.asarray(logits_BV - logits_BV.max(axis=1, keepdims=True), np.float64)).sum(axis=1)
    np.testing.assert_allclose(whole(logits_BV), exact_B, rtol=1e-6)


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("vocabulary", [320, 5000])
def test_any_partition_into_whole_blocks_gives_equal_bits(vocabulary, parts):
    logits_BV = logits(4, vocabulary)
    assert np.array_equal(in_parts(logits_BV, parts), whole(logits_BV))


def test_adding_the_parts_own_totals_is_told_apart():
    logits_BV = logits(16, 5000)
    naive = [in_parts(logits_BV, parts, naive=True) for parts in (1, 2, 4)]
    assert not np.array_equal(naive[0], naive[1]) or not np.array_equal(naive[0], naive[2])
    assert not np.array_equal(naive[0], whole(logits_BV))


def test_columns_of_minus_infinity_and_zero_blocks_change_no_bit():
    logits_BV = logits(4, 320)
    padded_BV = jnp.pad(logits_BV, ((0, 0), (0, 704)), constant_values=-jnp.inf)
    assert np.array_equal(whole(padded_BV), whole(logits_BV))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_row_sums_alike_alone_and_in_company(shape):
    logits_BV = logits(shape.rows, shape.vocabulary, seed=1)
    together = np.asarray(whole(logits_BV))
    assert np.array_equal(together[-1:], whole(logits_BV[-1:]))
    assert np.array_equal(together[::-1], whole(logits_BV[::-1]))


def test_sums_do_not_depend_on_other_outputs_of_the_program():
    logits_BV = logits(5, 1000)

    @jax.jit
    def with_more(logits_BV):
        terms_BV = jnp.exp(logits_BV - logits_BV.max(axis=1, keepdims=True))
        return whole(logits_BV), terms_BV, terms_BV.sum(axis=1), terms_BV * jnp.float32(0.3)

    looped = jax.lax.map(lambda row: whole(row[None])[0], logits_BV)
    assert np.array_equal(with_more(logits_BV)[0], whole(logits_BV))
    assert np.array_equal(looped, whole(logits_BV))


def test_empty_and_mistyped_rows_are_refused():
    with pytest.raises(ValueError, match=r"block_sums.*\(2, 0\)"):
        block_sums(jnp.zeros((2, 0), jnp.float32), jnp.zeros(2, jnp.float32))
    with pytest.raises(ValueError, match="float16"):
        block_sums(jnp.zeros((2, 4), jnp.float16), jnp.zeros(2, jnp.float32))
    with pytest.raises(ValueError, match="join_sums"):
        join_sums(jnp.zeros((2, 0), jnp.float32))
