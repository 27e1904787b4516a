"""Raw log-probabilities against float64, and the bits of a row under partition, company and surroundings."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnx_jax.lanes.logprobs import log_softmax, row_logprobs
from pallas_kernels.candidates import top_candidates
from pallas_kernels.vocabulary_sums import block_sums

scored = jax.jit(row_logprobs, static_argnums=2)


def rows_of(rows: int, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows + vocabulary)
    logits_BV = (4 * rng.standard_normal((rows, vocabulary)) + 10).astype(np.float32)
    return logits_BV, rng.integers(0, vocabulary, rows).astype(np.int32)


def as_arrays(outputs) -> list[np.ndarray]:
    return [np.asarray(output) for output in outputs]


def same(left, right) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(as_arrays(left), as_arrays(right), strict=True))


@pytest.mark.parametrize(("rows", "vocabulary", "top"), [(3, 320, 20), (2, 5, 20), (4, 248320, 20), (2, 1, 0)])
def test_logprobs_are_the_log_softmax_of_the_raw_logits(rows, vocabulary, top):
    logits_BV, target_B = rows_of(rows, vocabulary)
    logprob_B, ids_BK, top_BK = as_arrays(scored(jnp.asarray(logits_BV), jnp.asarray(target_B), top))
    wide_BV = logits_BV.astype(np.float64)
    exact_BV = wide_BV - np.log(np.exp(wide_BV).sum(axis=1, keepdims=True))
    order_BK = np.argsort(-logits_BV, axis=1, kind="stable")[:, :top]
    assert np.array_equal(ids_BK, order_BK)
    np.testing.assert_allclose(logprob_B, exact_BV[np.arange(rows), target_B], atol=4e-6)
    np.testing.assert_allclose(top_BK, np.take_along_axis(exact_BV, order_BK, axis=1), atol=4e-6)


def test_the_target_and_the_list_agree_to_the_bit():
    logits_BV, _ = rows_of(4, 1000)
    _, ids_BK, top_BK = scored(jnp.asarray(logits_BV), jnp.zeros(4, jnp.int32), 5)
    for place in range(5):
        assert np.array_equal(scored(jnp.asarray(logits_BV), ids_BK[:, place], 5)[0], top_BK[:, place])


def test_ties_list_the_lower_id_first():
    logits_BV = np.zeros((1, 320), np.float32)
    logits_BV[0, ::2] = -0.0
    logits_BV[0, [300, 9]] = 1.0
    assert scored(jnp.asarray(logits_BV), jnp.zeros(1, jnp.int32), 4)[1].tolist() == [[9, 300, 0, 1]]


@partial(jax.jit, static_argnums=(2, 3))
def in_parts(logits_BV, target_B, top, parts):
    """As `parts` devices would: maxima joined, partial sums and candidates gathered in slice order."""
    rows, vocabulary = logits_BV.shape
    width = -(-vocabulary // (128 * parts)) * 128
    padded_BV = jnp.pad(logits_BV, ((0, 0), (0, parts * width - vocabulary)), constant_values=-jnp.inf)
    slices = jnp.split(padded_BV, parts, axis=1)
    ceiling_B = jnp.stack([piece.max(axis=1) for piece in slices]).max(axis=0)
    sums_BN = jnp.concatenate([block_sums(piece, ceiling_B) for piece in slices], axis=1)
    lists = [top_candidates(piece, top) for piece in slices]
    values_BK, slot_BK = top_candidates(jnp.concatenate([values for values, _ in lists], axis=1), top)
    ids_BK = jnp.concatenate([ids + part * width for part, (_, ids) in enumerate(lists)], axis=1)
    target_B1 = jnp.take_along_axis(logits_BV, target_B[:, None], axis=1)
    return (
        log_softmax(target_B1, ceiling_B, sums_BN)[:, 0],
        jnp.take_along_axis(ids_BK, slot_BK, axis=1),
        log_softmax(values_BK, ceiling_B, sums_BN),
    )


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("vocabulary", [320, 5000])
def test_slices_of_the_vocabulary_give_the_bits_of_the_whole(vocabulary, parts):
    logits_BV, target_B = map(jnp.asarray, rows_of(5, vocabulary))
    assert same(in_parts(logits_BV, target_B, 20, parts), scored(logits_BV, target_B, 20))


def test_columns_beyond_the_vocabulary_change_no_bit():
    logits_BV, target_B = rows_of(4, 320)
    padded_BV = np.pad(logits_BV, ((0, 0), (0, 64)), constant_values=-np.inf)
    whole = scored(jnp.asarray(logits_BV), jnp.asarray(target_B), 20)
    assert same(scored(jnp.asarray(padded_BV), jnp.asarray(target_B), 20), whole)


def keeps_rows_apart(score) -> bool:
    """Whether every row scores the same bits alone, at any index and among other numbers of rows."""
    logits_BV, target_B = map(jnp.asarray, rows_of(16, 1000))
    together = as_arrays(score(logits_BV, target_B))
    equal = same(score(logits_BV[::-1], target_B[::-1]), [part[::-1] for part in together])
    for width in (1, 3):
        for start in range(0, 17 - width, width):
            rows = slice(start, start + width)
            equal &= same(score(logits_BV[rows], target_B[rows]), [part[rows] for part in together])
    return equal


def test_a_row_does_not_depend_on_its_company():
    assert keeps_rows_apart(lambda logits_BV, target_B: scored(logits_BV, target_B, 5))

    @jax.jit
    def with_a_shared_ceiling(logits_BV, target_B):
        ceiling_B = jnp.broadcast_to(logits_BV.max(), target_B.shape)
        return (log_softmax(logits_BV, ceiling_B, block_sums(logits_BV, ceiling_B)),)

    assert not keeps_rows_apart(with_a_shared_ceiling)


def test_logprobs_do_not_depend_on_the_surrounding_program():
    logits_BV, target_B = map(jnp.asarray, rows_of(5, 1000))

    @jax.jit
    def with_more(logits_BV, target_B):
        scores = row_logprobs(logits_BV, target_B, 5)
        return scores, jax.nn.log_softmax(logits_BV), jnp.exp(scores[2]), logits_BV * jnp.float32(0.5)

    def step(carry, row):
        scores = row_logprobs(row[0][None], row[1][None], 5)
        return carry, jax.tree.map(lambda leaf: leaf[0], scores)

    assert same(with_more(logits_BV, target_B)[0], scored(logits_BV, target_B, 5))
    assert same(jax.lax.scan(step, 0, (logits_BV, target_B))[1], scored(logits_BV, target_B, 5))


def test_a_library_log_softmax_gives_other_bits():
    logits_BV, target_B = map(jnp.asarray, rows_of(16, 5000))
    library_B = jnp.take_along_axis(jax.nn.log_softmax(logits_BV), target_B[:, None], axis=1)[:, 0]
    assert not np.array_equal(library_B, scored(logits_BV, target_B, 0)[0])


@pytest.mark.parametrize("spoiler", [np.nan, np.inf])
def test_a_non_finite_row_is_nan_and_touches_no_other(spoiler):
    logits_BV, target_B = rows_of(4, 320)
    clean = as_arrays(scored(jnp.asarray(logits_BV), jnp.asarray(target_B), 5))
    logits_BV[1, 17] = spoiler
    spoiled = as_arrays(scored(jnp.asarray(logits_BV), jnp.asarray(target_B), 5))
    assert np.isnan(spoiled[0][1])
    assert same([part[[0, 2, 3]] for part in spoiled], [part[[0, 2, 3]] for part in clean])


def test_a_negative_length_is_refused():
    with pytest.raises(ValueError, match="count -2"):
        row_logprobs(jnp.zeros((1, 4), jnp.float32), jnp.zeros(1, jnp.int32), -2)
