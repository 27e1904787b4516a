"""Stop strings: across pieces, overlapping, held back, and the same wherever the text is cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fnx_jax.engine.stop import StopMatcher, StopStrings


class Letters:
    """A decoder of a table: token i is `pieces[i]`."""

    def __init__(self, *pieces: str):
        self.pieces = pieces

    def push(self, token: int) -> str:
        return self.pieces[token]


def feed_all(matcher, pieces):
    return [matcher.feed(piece) for piece in pieces]


def test_string_is_found_across_pieces():
    matcher = StopMatcher(["END"])
    assert feed_all(matcher, ["a E", "N", "D b"]) == [None, None, "END"]
    assert (matcher.cut, matcher.matched, matcher.safe) == (2, "END", 2)


def test_nothing_is_looked_at_after_a_match():
    matcher = StopMatcher(["x", "y"])
    assert feed_all(matcher, ["x", "y"]) == ["x", None]
    assert (matcher.cut, matcher.matched) == (0, "x")


def test_earliest_start_in_a_piece_wins_over_list_order():
    assert StopMatcher(["bc", "abcd"]).feed("xabcd") == "abcd"
    matcher = StopMatcher(["z", "b"])
    assert (matcher.feed("abz"), matcher.cut) == ("b", 1)


def test_list_order_decides_between_equal_starts():
    assert StopMatcher(["ab", "abc"]).feed("abc") == "ab"
    assert StopMatcher(["abc", "ab"]).feed("abc") == "abc"


def test_string_that_is_complete_first_wins_over_one_that_might_start_earlier():
    matcher = StopMatcher(["abcd", "bc"])
    assert feed_all(matcher, ["ab", "c"]) == [None, "bc"]
    assert matcher.cut == 1


def test_text_is_held_back_only_while_it_can_become_a_stop():
    matcher = StopMatcher(["</s>", "<|im"])
    safe = []
    for piece in ["a<", "/", "b", "<|i", "x"]:
        matcher.feed(piece)
        safe.append(matcher.safe)
    assert safe == [1, 1, 4, 4, 8]


def test_match_that_does_not_count_is_passed_over():
    matcher = StopMatcher(["aa", "wxyz"])
    assert matcher.feed("aa", counts=False) is None
    assert matcher.safe == 1
    assert matcher.feed("b") is None
    assert matcher.safe == 3
    assert (matcher.feed("aa"), matcher.cut) == ("aa", 3)


def test_match_that_begins_in_text_that_does_not_count_is_found():
    matcher = StopMatcher(["ab"])
    assert matcher.feed("xa", counts=False) is None
    assert (matcher.feed("b"), matcher.cut) == ("ab", 1)


def test_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def test_no_strings_hold_nothing_back():
    matcher = StopMatcher([])
    assert matcher.feed("text") is None
    assert matcher.safe == 4


def test_watcher_counts_tokens_for_min_tokens():
    watcher = StopStrings(["!"], Letters("!", "a"), min_tokens=2)
    assert [watcher.push(token) for token in (0, 0, 1, 0)] == [None, None, None, "!"]
    assert watcher.matcher.cut == 3


def test_text_that_the_decoder_keeps_back_never_matches():
    watcher = StopStrings(["stop"], Letters("st", "", "op"))
    assert [watcher.push(token) for token in (0, 1, 2)] == [None, None, "stop"]
    assert StopStrings(["stop"], Letters("")).push(0) is None


@settings(max_examples=150, deadline=None)
@given(
    st.text("abc", max_size=24),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.integers(1, 4), min_size=24, max_size=24),
)
def test_matcher_agrees_with_a_search_of_the_whole_text(text, strings, sizes):
    matcher, seen, shown = StopMatcher(strings), "", 0
    while seen != text:
        piece = text[len(seen) : len(seen) + sizes.pop()]
        got, seen = matcher.feed(piece), seen + piece
        found = min(((seen.find(s), i) for i, s in enumerate(strings) if s in seen), default=None)
        assert (matcher.cut, got) == ((found[0], strings[found[1]]) if found else (None, None))
        assert shown <= matcher.safe, "text that was shown is taken back"
        shown = matcher.safe
        if found:
            break
        assert len(seen) - shown <= max(map(len, strings)) - 1
