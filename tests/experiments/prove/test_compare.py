"""What counts as a difference, and which one is the first."""

import math

import numpy as np
import pytest

from experiments.prove.compare import Difference, differences, equal, smallest_margin
from experiments.prove.record import Recording, Reply, Row, describe_row


def row(value: float = 1.0) -> Row:
    return describe_row(np.array([0.0, value, -2.0], np.float32))


def recording(tokens=(7, 8, 9), rows=None, finish="length") -> Recording:
    kept = {position: row() for position in (4, 5, 6)} if rows is None else rows
    return Recording({"a": Reply(prompt=4, tokens=tokens, finish=finish, rows=kept)}, ())


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (recording(), None),
        (recording(rows={4: row(), 5: row(1.0000001), 6: row()}), Difference("a", 5, "logits")),
        (recording(tokens=(7, 3, 9)), Difference("a", 5, "token")),
        (recording(tokens=(7, 3, 9), rows={4: row(), 5: row(2.0), 6: row(3.0)}), Difference("a", 5, "logits")),
        (recording(tokens=(7, 8), rows={4: row(), 5: row()}), Difference("a", 6, "token")),
        (recording(rows={4: row(), 6: row()}), Difference("a", 5, "missing")),
        (recording(finish="stop"), Difference("a", 7, "finish")),
        (recording(rows={2: row(), 4: row(), 5: row(), 6: row()}), Difference("a", 2, "missing")),
    ],
)
def test_the_first_difference_of_a_reply(found, wanted):
    assert differences(recording(), found) == ([] if wanted is None else [wanted])
    assert equal(recording(), found) is (wanted is None)


def test_bits_are_compared_and_not_values():
    zero, minus = (recording(rows={4: row(value), 5: row(), 6: row()}) for value in (0.0, -0.0))
    assert differences(zero, minus) == [Difference("a", 4, "logits")]
    nan = recording(rows={4: row(math.nan), 5: row(), 6: row()})
    assert equal(nan, nan)


def test_rows_that_nobody_kept_are_no_equality():
    nothing = recording(rows={})
    assert differences(nothing, nothing) == [Difference("a", 4, "missing")]


def test_an_unknown_request_is_no_equality():
    with pytest.raises(KeyError):
        differences(Recording({}, ()), recording())


def test_the_smallest_margin_is_of_emitted_positions():
    found = recording(rows={2: row(0.1), 4: row(0.5), 5: row(0.25), 6: row()})
    assert smallest_margin(found) == 0.25
    assert smallest_margin(Recording({}, ())) == math.inf
    assert (row(0.5).best, row(-1.0).best) == (1, 0)
