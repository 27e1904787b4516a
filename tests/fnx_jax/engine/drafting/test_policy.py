"""What the policy decides, driven by hand: no lanes, no device."""

import ast
from pathlib import Path

import pytest

import fnx_jax.engine.drafting
from fnx_jax.engine.drafting.guard import Guard, RateGuard, Spent
from fnx_jax.engine.drafting.policy import DraftPolicy
from fnx_jax.engine.drafting.settings import DraftSettings
from fnx_jax.engine.drafting.streams import Outcome, Stream, Window


def play(policy, rounds, *, hit, row_ms=0.1, head_ms=0.5, order=0, streams=1, prompt_rows=0):
    """Rounds of endless streams whose head drafts all land, or never do. Returns the depths asked for, by round."""
    orders, asked = range(order, order + streams), []
    lanes = [Stream(i, [1000 * i], 10_000) for i in orders]
    for _ in range(rounds):
        windows = policy.windows(lanes, 16 * streams, 16)
        committed = {w.order: (*(w.drafts if hit else ()), -5) for w in windows}
        ms = 10 + row_ms * sum(w.tested for w in windows)
        policy.note_round([Outcome(w, committed[w.order]) for w in windows], ms, prompt_rows)
        lanes = [
            Stream(lane.order, [*lane.tokens, *range(len(lane.tokens), len(lane.tokens) + 1)], 10_000) for lane in lanes
        ]
        depths = policy.depths(lanes)
        asked.append(depths)
        if any(depths):
            lanes = [
                Stream(lane.order, lane.tokens, 10_000, held=(7,) * d, chances=(0.9,) * d)
                for lane, d in zip(lanes, depths, strict=True)
            ]
            policy.note_draft(sum(d > 0 for d in depths), max(depths), head_ms * max(depths))
    return asked


def drafted(asked):
    return sum(any(depths) for depths in asked)


def test_drafts_that_land_are_made_deeper_and_deeper():
    asked = play(DraftPolicy(DraftSettings(), 15), 60, hit=True)
    assert drafted(asked) > 55
    assert max(asked)[0] == 15 and asked[-1][0] > 10


def test_a_clock_too_coarse_to_time_a_round_teaches_nothing():
    policy, stream = DraftPolicy(DraftSettings(rate_guard=True), 15), Stream(0, [1], 100)
    for _ in range(8):
        policy.note_round([Outcome(window, (7,)) for window in policy.windows([stream], 16, 16)], 0.0)
        policy.depths([stream])
    assert not policy.costs.known


def test_depth_stays_within_flag_and_head():
    assert max(play(DraftPolicy(DraftSettings(depth_most=3), 15), 40, hit=True))[0] == 3
    assert max(play(DraftPolicy(DraftSettings(), 2), 40, hit=True))[0] == 2
    assert drafted(play(DraftPolicy(DraftSettings(), 0), 40, hit=True)) == 0


def test_drafts_that_never_land_are_tried_at_growing_distances_and_never_given_up():
    asked = play(DraftPolicy(DraftSettings(), 15), 1200, hit=False)
    tries = [i for i, depths in enumerate(asked) if any(depths)]
    gaps = [b - a for a, b in zip(tries, tries[1:], strict=False)]
    assert max(gaps) == 129 and gaps[-3:] == [129] * 3
    assert sum(gap < 128 for gap in gaps) < 50


def test_covered_probes_come_at_doubling_distances():
    settings = DraftSettings(hope=0.0, loss_rounds=8.0, loss_share=0.1)
    asked = play(DraftPolicy(settings, 15), 1200, hit=False)
    tries = [i for i, depths in enumerate(asked) if any(depths)]
    gaps = [b - a for a, b in zip(tries, tries[1:], strict=False)]
    assert gaps[gaps.index(17) :][:4] == [17, 33, 65, 129]


def test_what_is_not_covered_is_tried_at_the_longest_distance_alone():
    settings = DraftSettings(loss_rounds=0.0, loss_share=0.0)
    tries = [i for i, depths in enumerate(play(DraftPolicy(settings, 15), 800, hit=False)) if any(depths)]
    assert tries[0] > 128 and [b - a for a, b in zip(tries, tries[1:], strict=False)] == [129] * (len(tries) - 1)


def test_drafts_that_more_luck_would_make_pay_are_tried_on_account():
    def tries(hope, **settings):
        policy = DraftPolicy(DraftSettings(hope=hope, **settings), 15)
        return drafted(play(policy, 60, hit=False, row_ms=0.5, streams=4))

    assert tries(1.0, loss_rounds=8.0) > tries(0.0, loss_rounds=8.0)
    assert tries(1.0, loss_rounds=0.0, loss_share=0.0) == 0


def test_without_the_guard_drafts_go_on_that_never_land():
    assert drafted(play(DraftPolicy(DraftSettings(plain_guard=False), 15), 200, hit=False)) > 190


def test_a_new_stream_pays_nothing_for_what_is_known():
    policy = DraftPolicy(DraftSettings(), 15)
    play(policy, 400, hit=False, row_ms=4.0)
    policy.forget(0)
    assert drafted(play(policy, 60, hit=False, order=1, row_ms=4.0)) <= 1


def test_drafts_come_back_when_they_land_again():
    policy = DraftPolicy(DraftSettings(), 15)
    play(policy, 400, hit=False)
    asked = play(policy, 400, hit=True)
    assert drafted(asked[-50:]) == 50


def test_one_stream_at_a_time_is_tried_and_all_take_turns():
    asked = play(DraftPolicy(DraftSettings(), 15), 600, hit=False, streams=3)
    tries = [depths for depths in asked[50:] if any(depths)]
    assert all(sum(depths) == 1 for depths in tries)
    assert {depths.index(1) for depths in tries} == {0, 1, 2}


def test_rounds_with_prompt_rows_do_not_keep_drafts_away_for_ever():
    assert drafted(play(DraftPolicy(DraftSettings(), 15), 40, hit=True, prompt_rows=16)) > 30


def test_a_lanes_first_round_is_not_timed():
    policy = DraftPolicy(DraftSettings(), 15)
    play(policy, 1, hit=True)
    assert not policy.costs.known
    play(policy, 1, hit=True)
    assert policy.costs.known and not policy.costs.plain_known(1), "one time may be anything"
    play(policy, 1, hit=True)
    assert policy.costs.plain_known(1)


def test_expensive_rows_are_not_taken_though_drafts_land():
    asked = play(DraftPolicy(DraftSettings(), 15), 300, hit=True, row_ms=20)
    assert drafted(asked[50:]) < 20


def test_rate_guard_is_its_own_setting_and_the_longest_wait_is_128():
    assert DraftSettings().rate_guard is False and DraftSettings().plain_wait_most == 128


def test_rate_guard_closes_on_slow_drafted_rounds_and_opens_again_at_doubling_distances():
    guard, waits = RateGuard(DraftSettings(rate_guard=True)), []
    guard.note(False, 1, 10.0)
    for _ in range(7):
        for _ in range(6):
            assert guard.allows()
            guard.note(True, 2, 30.0)
        waits.append(0)
        while not guard.allows():
            guard.note(False, 1, 10.0)
            waits[-1] += 1
    assert waits == [16, 32, 64, 128, 128, 128, 128]


def test_rate_guard_stays_open_while_drafted_rounds_are_quicker():
    guard = RateGuard(DraftSettings(rate_guard=True))
    guard.note(False, 1, 10.0)
    for _ in range(200):
        assert guard.allows()
        guard.note(True, 2, 15.0)


def test_copies_alone_do_not_close_the_rate_guard_and_the_heads_drafts_do():
    def allowed(head_ms):
        guard = Guard(DraftSettings(rate_guard=True))
        guard.note(Spent(1, 1, 0, 10.0, 0.0), 10.0, measured=True)
        for _ in range(20):
            guard.note(Spent(1, 1, 7, 40.0, head_ms), 10.0, measured=True)
        return guard.allows()

    assert allowed(0.0) and not allowed(1.0)


def test_copies_are_not_tested_where_they_may_lose_nothing_and_yet_known():
    def window(**settings):
        policy = DraftPolicy(DraftSettings(**settings), 15)
        play(policy, 3, hit=False)
        return policy.windows([Stream(9, [*range(100, 130), *range(100, 110)], 100)], 16, 16)[0]

    assert window().tested > 0
    broke = window(loss_rounds=0.0, loss_share=0.0)
    assert broke.source == "copy" and len(broke.offered) > 1 and not broke.tested


def test_a_first_plain_time_far_too_long_does_not_make_every_draft_pay():
    policy = DraftPolicy(DraftSettings(), 15)
    play(policy, 1, hit=False)
    window = Window(0)
    policy.note_round([Outcome(window, (1,))], 1000.0)
    asked = play(policy, 60, hit=False, row_ms=4.0)
    assert drafted(asked) < 10


def test_forced_tokens_come_first_then_copies_then_held_drafts():
    policy = DraftPolicy(DraftSettings(), 15)
    play(policy, 30, hit=True)
    repeated = [*range(100, 130), *range(100, 110)]
    stream = Stream(9, repeated, 100, held=(1, 2), chances=(0.9, 0.9))
    assert policy.windows([stream], 16, 16)[0].source == "copy"
    assert policy.windows([stream], 16, 16)[0].drafts[:3] == (110, 111, 112)
    forced = Stream(9, repeated, 100, held=(1, 2), chances=(0.9, 0.9), forced=(5, 6, 7))
    window = policy.windows([forced], 16, 16)[0]
    assert (window.source, window.drafts) == ("forced", (5, 6, 7))
    fresh = Stream(10, [1, 2, 3], 100, held=(1, 2), chances=(0.9, 0.9))
    assert policy.windows([fresh], 16, 16)[0].source == "head"


def test_a_stream_that_wants_no_drafts_gets_none():
    policy = DraftPolicy(DraftSettings(), 15)
    play(policy, 30, hit=True)
    repeated = [*range(100, 130), *range(100, 110)]
    stream = Stream(9, repeated, 100, drafts=False, held=(1, 2))
    assert policy.windows([stream], 16, 16)[0].drafts == ()
    assert policy.depths([stream]) == (0,)


def test_more_streams_than_rows_are_refused():
    with pytest.raises(ValueError, match="2 streams, 1 rows"):
        DraftPolicy(DraftSettings(), 15).windows([Stream(0, [1], 5), Stream(1, [1], 5)], 1, 16)


def test_the_package_imports_nothing_of_the_device_and_nothing_of_the_loop():
    for file in Path(fnx_jax.engine.drafting.__path__[0]).glob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        outside = [name for name in names if name.startswith(("jax", "fnx_jax"))]
        assert all(name.startswith(("jaxtyping", "fnx_jax.engine.drafting")) for name in outside), file.name
