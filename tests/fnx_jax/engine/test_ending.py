"""When a reply ends, and with which reason."""

import pytest

from fnx_jax.engine.ending import End, end_ids, ending
from fnx_jax.engine.request import SamplingParams

SAMPLING = SamplingParams(eos_token_ids=(1, 2), stop_token_ids=(5,))


@pytest.mark.parametrize(
    ("token", "matched", "end"),
    [
        (0, None, None),
        (1, None, End("stop")),
        (2, "x", End("stop")),
        (5, None, End("stop", 5)),
        (5, "x", End("stop", 5)),
        (0, "x", End("stop", "x")),
    ],
)
def test_end_token_comes_before_stop_id_before_stop_string(token, matched, end):
    assert ending(SAMPLING, token, 3, 10, matched) == end


def test_limit_ends_what_nothing_else_ends():
    assert ending(SAMPLING, 0, 10, 10, None) == End("length")
    assert ending(SAMPLING, 1, 10, 10, None) == End("stop")
    assert ending(SAMPLING, 0, 10, 10, "x") == End("stop", "x")


def test_ignored_end_token_is_an_ordinary_token():
    sampling = SamplingParams(eos_token_ids=(1,), stop_token_ids=(1, 5), ignore_eos=True)
    assert end_ids(sampling) == {1, 5}
    assert ending(sampling, 1, 1, 10, None) == End("stop", 1)
    assert end_ids(SamplingParams(eos_token_ids=(1,), ignore_eos=True)) == frozenset()
    assert ending(SamplingParams(eos_token_ids=(1,), ignore_eos=True), 1, 1, 10, None) is None


def test_first_min_tokens_do_not_end_a_reply():
    sampling = SamplingParams(eos_token_ids=(1,), stop_token_ids=(5,), min_tokens=3)
    for token, matched in ((1, None), (5, None), (0, "x")):
        assert [ending(sampling, token, n, 10, matched) is None for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert ending(sampling, 0, 2, 2, None) == End("length")
