"""The two-stage selection against a full sort, where ties, signed zeros and masks are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.candidates import top_candidates
from pallas_kernels.candidates.reference import block_columns
from pallas_kernels.candidates.shapes import SHAPES, Shape

select = jax.jit(top_candidates, static_argnums=1)


def sorted_ids(values_BV: np.ndarray, count: int, tie: int = 1) -> np.ndarray:
    """The first ids by value descending, then by id ascending (tie = 1) or descending (tie = -1)."""
    ids = tie * np.arange(values_BV.shape[1])
    return np.stack([np.lexsort((ids, -row))[:count] for row in values_BV])


def rows_with_ties(shape: Shape, levels: int) -> np.ndarray:
    """Few distinct values, masked stretches, and zeros of both signs."""
    rng = np.random.default_rng(shape.vocabulary + levels)
    values_BV = rng.integers(-levels, levels, (shape.rows, shape.vocabulary)).astype(np.float32) / 2
    values_BV *= np.where(rng.random(values_BV.shape) < 0.5, -1, 1).astype(np.float32)
    values_BV[:, 40:80] = -np.inf
    return values_BV


def agrees(values_BV: np.ndarray, count: int, tie: int = 1) -> bool:
    values_BK, ids_BK = select(jnp.asarray(values_BV), count)
    expected_BK = sorted_ids(values_BV, count, tie)
    same_values = np.array_equal(values_BK, np.take_along_axis(values_BV, expected_BK, axis=1))
    return same_values and np.array_equal(ids_BK, expected_BK)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_selection_equals_a_full_sort(shape):
    few = Shape(rows=2, vocabulary=shape.vocabulary, count=shape.count)
    assert agrees(rows_with_ties(few, levels=3), few.count)
    values_BV = np.random.default_rng(4).standard_normal((shape.rows, shape.vocabulary)).astype(np.float32)
    assert agrees(values_BV, shape.count)


def test_the_swapped_tie_order_is_told_apart():
    shape = Shape(rows=3, vocabulary=3000, count=50)
    assert agrees(rows_with_ties(shape, levels=4), shape.count)
    assert not agrees(rows_with_ties(shape, levels=4), shape.count, tie=-1)


@pytest.mark.parametrize("vocabulary", [1, 2, 63, 64, 65, 257, 1000, 4097])
def test_any_vocabulary_and_count_fit(vocabulary):
    values_BV = rows_with_ties(Shape(rows=2, vocabulary=vocabulary, count=0), levels=5)
    for count in sorted({1, min(3, vocabulary), min(16, vocabulary), vocabulary}):
        assert agrees(values_BV, count)


def test_every_block_width_gives_the_same_selection():
    widths = {block_columns(20000, count) for count in (1, 20, 100, 1000, 4000)}
    assert len(widths) > 3
    values_BV = rows_with_ties(Shape(rows=1, vocabulary=20000, count=0), levels=6)
    lists = [np.asarray(select(jnp.asarray(values_BV), count)[1][0]) for count in (1, 20, 100, 1000, 4000)]
    assert all(
        np.array_equal(longer[: len(shorter)], shorter) for shorter, longer in zip(lists, lists[1:], strict=False)
    )


def test_zeros_of_both_signs_tie_and_come_back_positive():
    values_BV = jnp.asarray([[-0.0, 0.0, -0.0, 0.0, -1.0]], jnp.float32)
    values_BK, ids_BK = select(values_BV, 3)
    assert ids_BK.tolist() == [[0, 1, 2]]
    assert not np.signbit(values_BK).any()


@pytest.mark.parametrize("parts", [2, 4])
def test_lists_of_slices_select_the_list_of_the_whole(parts):
    values_BV = jnp.asarray(rows_with_ties(Shape(rows=3, vocabulary=4096, count=0), levels=30))
    width = 4096 // parts
    lists = [select(values_BV[:, part * width : (part + 1) * width], 64) for part in range(parts)]
    gathered_BK = jnp.concatenate([values for values, _ in lists], axis=1)
    ids_BK = jnp.concatenate([ids + part * width for part, (_, ids) in enumerate(lists)], axis=1)
    values_BK, slot_BK = select(gathered_BK, 64)
    whole_values_BK, whole_ids_BK = select(values_BV, 64)
    assert np.array_equal(values_BK, whole_values_BK)
    assert np.array_equal(np.take_along_axis(np.asarray(ids_BK), np.asarray(slot_BK), axis=1), whole_ids_BK)


def test_a_nan_row_leaves_the_others_alone():
    values_BV = rows_with_ties(Shape(rows=3, vocabulary=3000, count=0), levels=4)
    spoiled_BV = values_BV.copy()
    spoiled_BV[1, 7] = np.nan
    clean, spoiled = select(jnp.asarray(values_BV), 50)[1], select(jnp.asarray(spoiled_BV), 50)[1]
    assert np.array_equal(clean[::2], spoiled[::2])
    assert ((spoiled[1] >= 0) & (spoiled[1] < 3000)).all()


def test_counts_beyond_the_vocabulary_are_cut_and_zero_gives_nothing():
    values_BV = jnp.zeros((2, 5), jnp.float32)
    assert select(values_BV, 9)[1].tolist() == [[0, 1, 2, 3, 4]] * 2
    assert [part.shape for part in select(values_BV, 0)] == [(2, 0), (2, 0)]


def test_wrong_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match="count -1"):
        top_candidates(jnp.zeros((1, 4), jnp.float32), -1)
    with pytest.raises(ValueError, match="bfloat16"):
        top_candidates(jnp.zeros((1, 4), jnp.bfloat16), 2)
