"""Rates and waits from pieces whose times are known."""

import pytest

from experiments.bench.concurrent.measure import Measured
from experiments.bench.concurrent.rates import (
    Rate,
    decode_rate,
    figures_of,
    overlapped,
    prefill_rate,
    total,
    waits_s,
    wave_rate,
)
from experiments.http_client import Piece
from tests.experiments.bench.concurrent.stub import answer


def pieces(*pairs):
    return tuple(Piece(at_s, tokens) for at_s, tokens in pairs)


EARLY = answer(pieces=pieces((1, 1), (2, 3), (4, 2)), begin_s=0.0, end_s=4.5, prompt_tokens=20)
LATE = answer(pieces=pieces((3, 2), (6, 4)), begin_s=0.5, end_s=6.0, prompt_tokens=10)


def test_decoding_counts_while_all_replies_of_a_wave_decode():
    assert decode_rate([EARLY]) == Rate(5, 3)
    assert decode_rate([EARLY, LATE]) == Rate(2, 1)
    after = answer(pieces=pieces((5, 1), (6, 1)), begin_s=0.0, end_s=6.0)
    assert decode_rate([EARLY, after]).tok_s is None


def test_a_whole_wave_counts_from_its_first_piece_to_its_last():
    assert wave_rate([EARLY]) == Rate(5, 3)
    assert wave_rate([EARLY, LATE]) == Rate(9, 5)
    assert total([Rate(5, 3), Rate(9, 5)]) == Rate(14, 8)


def test_prefill_ends_with_a_waves_last_first_piece():
    assert prefill_rate([EARLY]) == Rate(20, 1)
    assert prefill_rate([EARLY, LATE]) == Rate(30, 3)


def test_a_gap_is_shared_among_the_tokens_of_its_piece():
    assert waits_s(EARLY) == pytest.approx([1 / 3] * 3 + [1.0] * 2)


def test_nothing_is_divided_by_nothing():
    once = answer(pieces=pieces((1, 8)))
    assert decode_rate([once]).tok_s is None and decode_rate([answer(pieces=())]).tok_s is None
    found = figures_of([Measured(((once,),))])
    assert found.itl_ms is None and found.acceptance is None and found.rounds is None


def test_figures_add_blocks_up():
    parts = [Measured(((EARLY,),), 3.0), Measured(((LATE, answer(drafted=4, accepted=3)),), 5.0)]
    found = figures_of(parts)
    assert found.rounds == 8 and found.tokens == 6 + 6 + 8
    assert (found.drafted, found.accepted, found.acceptance) == (4, 3, 0.75)
    assert found.decode == Rate(5, 3) + Rate(4 + 3, 3)
    assert found.wave == Rate(5, 3) + Rate(4 + 7, 8)
    assert found.ttft_ms == pytest.approx((1000, 2200))
    assert figures_of([parts[0], Measured(((LATE,),), None)]).rounds is None


def test_replies_overlap_where_all_began_before_one_ended():
    assert overlapped([EARLY]) and overlapped([EARLY, LATE])
    assert not overlapped([EARLY, answer(pieces=pieces((5, 1), (6, 1)), end_s=6.0)])
