"""Host side: few cells that meet every pair of values of two axes. Deterministic, no search."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from experiments.prove.cells import Value

Pair = tuple[tuple[str, Value], tuple[str, Value]]


def pairwise(axes: Mapping[str, Sequence[Value]]) -> list[dict[str, Value]]:
    """Rows with one value an axis, such that every two values of different axes stand together in at least one.

    Each row starts from the first pair that is still missing and takes, axis by axis, the value that adds most.
    """
    missing = dict.fromkeys(_pairs(axes))
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for name, values in axes.items():
            if name not in row:
                row[name] = max(values, key=lambda value: _gain(row, name, value, missing))
        row = {name: row[name] for name in axes}
        for pair in itertools.combinations(row.items(), 2):
            missing.pop(pair, None)
        rows.append(row)
    return rows or [dict(row) for row in product(axes)]


def product(axes: Mapping[str, Sequence[Value]]) -> list[dict[str, Value]]:
    """Every combination."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _pairs(axes: Mapping[str, Sequence[Value]]) -> Iterator[Pair]:
    for (first, values), (second, others) in itertools.combinations(axes.items(), 2):
        for value, other in itertools.product(values, others):
            yield (first, value), (second, other)


def _gain(row: Mapping[str, Value], name: str, value: Value, missing: Mapping[Pair, None]) -> int:
    mine = (name, value)
    return sum((mine, theirs) in missing or (theirs, mine) in missing for theirs in row.items())
