"""Shares: as many drafts as pay, as their account covers, and in windows that no tile border cuts."""

import random

import pytest

from fnx_jax.engine.drafting.allocate import Chain, allocate
from fnx_jax.engine.drafting.layout import lay_out
from fnx_jax.engine.drafting.streams import Window


def test_drafts_are_added_while_tokens_for_a_millisecond_grow():
    def price(drafts, heads, deepest):
        return 10 + drafts + 2 * bool(heads) + deepest

    best, plain = allocate([Chain((0.9, 0.9, 0.2)), Chain((0.1,))], price)
    assert best.counts == (2, 0) and plain.counts == (0, 0)
    assert best.tokens == pytest.approx(2 + 0.9 + 0.81) and best.ms == 16
    counts = [(a, b) for a in range(4) for b in range(2)]
    rates = {
        (a, b): (2 + sum((0.9, 0.81, 0.162)[:a]) + 0.1 * b) / price(a + b, (a > 0) + (b > 0), max(a, b))
        for a, b in counts
    }
    assert best.counts == max(counts, key=lambda count: rates[count])


def test_copies_cost_no_head_step():
    best, _ = allocate([Chain((0.5,), head=False)], lambda drafts, heads, deepest: 10 + drafts + 100 * heads)
    assert best.counts == (1,)


def flat(drafts, heads, deepest):
    return 10 + 0.1 * drafts


def steep(drafts, heads, deepest):
    return 10 + drafts


def test_no_more_is_taken_than_is_covered():
    chains = [Chain((0.9,) * 15)]
    free, plain = allocate(chains, flat)
    covered, _ = allocate(chains, flat, 0.45)
    assert free.counts[0] > 4 and covered.counts == (4,)
    assert allocate(chains, flat, 0.0)[0] == plain


def test_tiles_are_filled_where_windows_would_cross_their_borders():
    chains = [Chain((0.9,) * 15) for _ in range(4)]
    best, _ = allocate(chains, lambda drafts, heads, deepest: 10 + 4 * (1 + (drafts + 3) // 16))
    assert (sum(best.counts) + 4) % 16 == 0


def test_no_window_is_cut_whatever_the_chances():
    rng = random.Random(0)
    tiles = set()
    for _ in range(300):
        lanes = rng.randint(1, 12)
        chains = [
            Chain([rng.uniform(0.3, 1) for _ in range(rng.randint(0, 15))], fixed=rng.choice([0, 0, 0, 5]))
            for _ in range(lanes)
        ]
        best, plain = allocate(chains, flat if rng.random() < 0.5 else steep)
        assert best.rate >= plain.rate and sorted(best.order) == list(range(lanes))
        rows = [1 + count + chain.fixed for count, chain in zip(best.counts, chains, strict=True)]
        offers = [Window(i, "head", (0,) * (n - 1)) for i, n in enumerate(rows)]
        laid = lay_out(offers, [n - 1 for n in rows], [99] * lanes, 16 * lanes, 16, best.order)
        if any(best.counts):
            assert [1 + window.tested for window in laid] == [rows[i] for i in best.order]
            tiles.add(-(-sum(rows) // 16))
    assert len(tiles) > 3


def test_a_lane_that_drafts_well_is_not_held_back_by_many_that_do_not():
    best, _ = allocate([*[Chain((0.02,))] * 19, Chain((0.95,) * 15)], flat)
    assert best.counts[-1] > 5


def test_chains_are_even_where_a_head_step_costs_more_than_it_gains():
    chains = [Chain((0.91,) * 15), Chain((0.9,) * 15)]
    best, _ = allocate(chains, lambda drafts, heads, deepest: 10 + max(0, drafts - 14) + 3 * deepest)
    assert best.counts[0] == best.counts[1]
