"""Every pair of values stands in a cell, and few cells do it."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.prove.cells import AXES, Cell, make_cell
from experiments.prove.covering import pairwise, product


def pairs(rows):
    return {pair for row in rows for pair in itertools.combinations(row.items(), 2)}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=6))
def test_every_pair_occurs_and_nothing_else(sizes):
    axes = {f"axis {i}": tuple(range(size)) for i, size in enumerate(sizes)}
    rows = pairwise(axes)
    assert pairs(rows) == pairs(product(axes))
    assert rows == pairwise(axes)
    assert all(list(row) == list(axes) for row in rows)


def test_the_array_of_all_axes_is_small():
    rows = pairwise(AXES)
    assert pairs(rows) == pairs(product(AXES))
    assert len(rows) <= 24 < len(product(AXES))


def test_one_axis_needs_each_value_once():
    assert pairwise({"a": (1, 2)}) == [{"a": 1}, {"a": 2}]
    assert product({"a": (1, 2), "b": (3,)}) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]


def test_the_reference_is_the_default_of_every_axis_and_keeps_the_sampling():
    cell = make_cell({name: values[-1] for name, values in AXES.items()})
    assert cell.reference() == Cell(sampling="penalised")
    assert all(getattr(Cell(), name) == values[0] for name, values in AXES.items())
