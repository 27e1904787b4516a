"""Windows fit the rows of a round and its tiles; every stream has one row."""

import pytest

from fnx_jax.engine.drafting.layout import lay_out
from fnx_jax.engine.drafting.streams import Window


def offers(*lengths, source="head"):
    return [Window(i, source, tuple(range(n))) for i, n in enumerate(lengths)]


def drafts(windows):
    return {window.order: window.tested for window in windows}


def crosses(windows, row_tile):
    first = 0
    for window in windows:
        if first // row_tile != (first + window.tested) // row_tile:
            return True
        first += 1 + window.tested
    return False


@pytest.mark.parametrize("counts", [(7, 8, 8, 5), (15, 15), (9, 9, 9), (1, 14, 3, 15), (0, 15, 0, 15), (3,) * 8])
def test_no_window_crosses_a_tile_border_and_few_drafts_are_lost(counts):
    windows = lay_out(offers(*counts), counts, [100] * len(counts), 16 * len(counts), 16)
    assert not crosses(windows, 16)
    assert sorted(drafts(windows)) == list(range(len(counts)))
    assert sum(counts) - sum(window.tested for window in windows) <= 2 * len(counts)


def test_windows_of_one_tile_keep_their_order():
    assert [window.order for window in lay_out(offers(1, 5, 2), (1, 5, 2), [9] * 3, 48, 16)] == [0, 1, 2]


def test_what_a_border_cuts_goes_to_those_after_it():
    windows = lay_out(offers(9, 9, 9, 9), (8, 8, 8, 8), [20] * 4, 64, 16)
    assert [window.tested for window in windows] == [8, 6, 9, 5]


def test_rows_are_taken_from_the_youngest_copy_first_then_from_the_longest_chain():
    both = [Window(0, "copy", (1,) * 7), Window(1, "head", (1,) * 3), Window(2, "copy", (1,) * 7)]
    assert drafts(lay_out(both, (7, 3, 7), [99] * 3, 15, 16)) == {0: 7, 1: 3, 2: 2}
    assert drafts(lay_out(both, (7, 3, 7), [99] * 3, 6, 16)) == {0: 0, 1: 3, 2: 0}
    assert drafts(lay_out(both, (7, 3, 7), [99] * 3, 3, 16)) == {0: 0, 1: 0, 2: 0}


def test_a_window_stays_within_the_reply():
    assert drafts(lay_out(offers(5), (5,), [3], 16, 16)) == {0: 2}
