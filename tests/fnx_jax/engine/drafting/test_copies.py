"""Copies: found by their last tokens, grown while they land, and doubted where they do not."""

import random

import pytest

from fnx_jax.engine.drafting.copies import AT_ONCE, Copier, SuffixIndex
from fnx_jax.engine.drafting.settings import DraftSettings

SETTINGS = DraftSettings()


def brute(tokens, entry):
    """The positions that may follow: those after an earlier place of the newest tokens."""
    newest = tokens[-entry:]
    return [end for end in range(entry, len(tokens)) if tokens[end - entry : end] == newest]


def test_index_finds_a_place_exactly_where_one_is():
    rng = random.Random(0)
    tokens = [rng.randrange(2) for _ in range(400)]
    index, found = SuffixIndex(5), 0
    for length in range(1, len(tokens) + 1):
        index.catch_up(tokens[:length])
        places = brute(tokens[:length], 5) if length >= 5 else []
        assert (index.source is None) == (not places)
        if places:
            assert index.source in places
            found += 1
    assert found > 100


def test_seven_matching_tokens_are_no_copy_and_eight_are():
    index = SuffixIndex(8)
    first = list(range(20))
    index.catch_up([*first, 99, *range(5, 12)])
    assert index.proposal(4) == ()
    index.catch_up([*first, 99, *range(5, 13)])
    assert index.proposal(4) == (13, 14, 15, 16)


def test_a_copy_that_reaches_the_end_goes_on_with_itself():
    index = SuffixIndex(2)
    index.catch_up([1, 2, 3, 1, 2])
    assert index.proposal(7) == (3, 1, 2, 3, 1, 2, 3)


def test_a_long_prompt_is_taken_in_over_several_rounds_and_copied_from_then():
    index, tokens = SuffixIndex(8), [*range(AT_ONCE), *range(20)]
    index.catch_up(tokens)
    assert index.behind and index.proposal(4) == ()
    index.catch_up(tokens)
    assert not index.behind and index.proposal(4) == (20, 21, 22, 23)


def test_each_token_is_read_once():
    class Counted(list):
        reads = 0

        def __getitem__(self, key):
            Counted.reads += 1
            return super().__getitem__(key)

    tokens, index = Counted(), SuffixIndex(8)
    for i in range(500):
        tokens.append(i % 30)
        index.catch_up(tokens)
    assert Counted.reads == 500


def test_copies_grow_while_they_land_whole_and_fall_back_after_a_break():
    copier = Copier(SETTINGS, 0.94)
    copier.index.catch_up([*range(40), *range(8)])
    sizes = [len(copier.offer(15, alone=True))]
    for hits in ([True] * 7, [True] * 15, [True, False]):
        copier.note(hits, len(hits), whole=True)
        sizes.append(len(copier.offer(15, alone=True)))
    assert sizes == [7, 15, 15, 7]
    copier.note([True] * 7, 7, whole=True)
    assert len(copier.offer(15, alone=False)) == 7, "in company the first size holds"


def test_no_copy_is_shorter_than_two():
    copier = Copier(SETTINGS, 0.94)
    copier.index.catch_up([*range(40), *range(8)])
    assert len(copier.offer(2, alone=True)) == 2
    assert copier.offer(1, alone=True) == ()


def test_copies_that_got_no_row_are_judged_too():
    copier = Copier(SETTINGS, 0.94)
    before = copier.chances(1)[0]
    copier.note([False], 0, whole=False)
    assert copier.chances(1)[0] < before


def test_settings_name_what_is_wrong():
    with pytest.raises(ValueError, match="depth_most=16"):
        DraftSettings(depth_most=16)
    with pytest.raises(ValueError, match="plain_margin=0.9"):
        DraftSettings(plain_margin=0.9)
