"""Stop strings cut the text at the first match, and only what may still match is held back."""

import pytest

from fnx_jax.serve.stops import StopCut


def cut(pieces: list[str], stops: list[str], keep: bool = False) -> tuple[str, str | None]:
    stop = StopCut(stops, keep)
    text = "".join(stop.feed(piece) for piece in pieces)
    return text + stop.close(), stop.hit


@pytest.mark.parametrize(
    ("text", "stops", "keep", "left", "hit"),
    [
        ("one STOP two STOP", ["STOP"], False, "one ", "STOP"),
        ("one STOP two", ["STOP"], True, "one STOP", "STOP"),
        ("abcd", ["cd", "bc"], False, "a", "bc"),
        ("no match at all", ["STOP"], False, "no match at all", None),
        ("ends in ST", ["STOP"], False, "ends in ST", None),
        ("aaab", ["aab"], False, "a", "aab"),
        ("日本語です", ["語"], False, "日本", "語"),
        ("text", [], False, "text", None),
    ],
)
def test_cut_does_not_depend_on_pieces(text, stops, keep, left, hit):
    for size in range(1, len(text) + 1):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert cut(pieces, stops, keep) == (left, hit), size


def test_text_that_cannot_match_is_not_held():
    stop = StopCut(["STOP"])
    assert stop.feed("a ST") == "a "
    assert stop.feed("x") == "STx"


def test_a_match_that_does_not_count_is_text():
    stop = StopCut(["ab"])
    assert stop.feed("ab", counts=False) == "ab"
    assert stop.feed("a", counts=False) == ""
    assert stop.feed("b!") == ""
    assert stop.hit == "ab"
