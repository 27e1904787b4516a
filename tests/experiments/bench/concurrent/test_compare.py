"""Digests first, then ratios of pairs, the gate, and what went unchecked."""

from dataclasses import replace

import pytest

from experiments.bench.concurrent.compare import Unequal, digests, ratios, require_equal, unchecked, unmet
from experiments.bench.concurrent.plan import ARMS, Cell, blocks
from experiments.bench.concurrent.report import figures, verdict
from tests.experiments.bench.concurrent.stub import answer, block, plan


def run(chosen, seconds):
    """Blocks of a plan; seconds: of a reply, by arm and half."""
    return [block(chosen, half, arm, seconds[arm][half]) for half, arm in blocks(chosen.arms, chosen.sets)]


EVEN = {arm: (4.0, 4.0) for arm in ARMS}


def change(done, at, cell, wave, position, **fields):
    """The same blocks, but for one reply."""
    measured = done[at].cells[cell]
    waves = [list(replies) for replies in measured.waves]
    waves[wave][position] = replace(waves[wave][position], **fields)
    changed = replace(measured, waves=tuple(tuple(replies) for replies in waves))
    return [*done[:at], replace(done[at], cells={**done[at].cells, cell: changed}), *done[at + 1 :]]


def test_equal_replies_have_one_digest_a_workload_and_sampling():
    chosen = plan(alone=True, serial=True, samplings=("greedy", "seeded"))
    hashes = require_equal(chosen, run(chosen, EVEN))
    assert len(hashes) == 2 * 2 * 2
    found = digests(hashes)
    assert set(found) == {f"{w}, {s}" for w in ("code", "edit") for s in ("greedy", "seeded")}
    assert len(set(found.values())) == 4
    other = {name: "x" if name == "edit, seeded, request 1" else sha for name, sha in hashes.items()}
    assert {case for case, digest in digests(other).items() if digest != found[case]} == {"edit, seeded"}


@pytest.mark.parametrize("level", ["alone", "serial", "2"])
def test_the_first_reply_that_differs_is_named_with_both_places(level):
    chosen = plan(alone=True, serial=True)
    cell = Cell(level, 2 if level == "2" else 1, "edit", "greedy")
    at = 5 if level == "serial" else 2
    wave, position = (0, 1) if level == "2" else (1, 0)
    done = change(run(chosen, EVEN), at, cell, wave, position, token_sha="other")
    with pytest.raises(Unequal) as raised:
        require_equal(chosen, done)
    arm = done[at].arm
    assert str(raised.value) == (
        "edit, greedy, request 1: arm draft (block 1), level alone gave token_sha editgreedy1, "
        f"arm {arm} (block {at + 1}), level {level} gave other"
    )


@pytest.mark.parametrize("fields", [{"token_sha": None}, {"pieces": ()}])
def test_a_reply_without_a_hash_is_unverified_and_not_equal(fields):
    done = change(run(plan(), EVEN), 1, Cell("2", 2, "code", "greedy"), 0, 0, **fields)
    with pytest.raises(Unequal, match=r"code, greedy, request 0: .*off_request \(block 2\), level 2 .*unverified"):
        require_equal(plan(), done)


def test_a_ratio_is_the_median_of_the_pairs_of_halves():
    chosen = plan(sets=2)
    seconds = {"draft": (2.0, 4.0, 4.0, 4.0), "off_request": (4.0, 4.0, 2.0, 6.0), "off_server": (4.0,) * 4}
    found = {(r.against, r.level): r for r in ratios(chosen, run(chosen, seconds)) if r.whole}
    assert set(found) == {(arm, level) for arm in ("off_request", "off_server") for level in ("1", "2")}
    assert found["off_request", "2"].pairs == pytest.approx((2.0, 1.0, 0.5, 1.5))
    assert found["off_request", "2"].ratio == pytest.approx(1.25)
    assert found["off_server", "1"].ratio == pytest.approx(1.0)


def test_a_machine_that_slows_down_steadily_changes_no_ratio_much():
    chosen, pace = plan(), [1.0 + 0.02 * i for i in range(6)]
    order = blocks(chosen.arms, 1)
    done = [block(chosen, half, arm, 4.0 * pace[i]) for i, (half, arm) in enumerate(order)]
    assert all(ratio.ratio == pytest.approx(1, abs=0.002) for ratio in ratios(chosen, done))
    assert any(abs(pair - 1) > 0.01 for ratio in ratios(chosen, done) for pair in ratio.pairs)


def test_the_gate_judges_levels_and_not_workloads():
    chosen = plan()
    done = run(chosen, {**EVEN, "draft": (4.4, 4.4)})
    found = ratios(chosen, done)
    assert not unmet(found, 0.9) and not unmet(found, 0.0)
    below = unmet(found, 0.95)
    assert {(r.against, r.level) for r in below} == {
        (a, level) for a in ("off_request", "off_server") for level in ("1", "2")
    }
    assert all(ratio.whole for ratio in below)
    said = verdict(found, 0.95, [])
    assert "below the gate: level 1 over off_request: 0.909 (pairs 0.909, 0.909)" in said
    assert "gate 0.95: 0 of 4 levels and arms hold; least 0.909" in said
    assert "gate 0.9: 4 of 4" in verdict(found, 0.9, [])


def test_nothing_is_unchecked_where_all_was_exercised():
    chosen = plan(alone=True, serial=True)
    done = run(chosen, EVEN)
    assert unchecked(chosen, done, ratios(chosen, done)) == []


@pytest.mark.parametrize(
    ("at", "fields", "says"),
    [
        (0, {"cached": 7}, "code, greedy, request 1: 7 tokens of its prompt were resumed"),
        (1, {"drafted": 1}, "arm off_request: the server tested drafts where there should be none"),
        (0, {"pieces": answer(tokens=8, seconds=0.1).pieces, "end_s": 0.5}, "level 2, code: replies did not overlap"),
    ],
)
def test_what_was_not_exercised_is_said(at, fields, says):
    done = change(run(plan(), EVEN), at, Cell("2", 2, "code", "greedy"), 0, 1, **fields)
    (word,) = unchecked(plan(), done, ratios(plan(), done))
    assert word.startswith(says)
    assert f"UNCHECKED: {says}" in verdict([], 0.95, [word])


def test_drafts_that_never_came_and_programs_that_were_compiled_are_said():
    chosen = plan(arms=("draft", "off_request"))
    done = [replace(block(chosen, half, "off_request", 4.0), arm=arm) for half, arm in blocks(chosen.arms, 1)]
    done[1] = replace(done[1], compilations=2.0)
    words = unchecked(chosen, done, ratios(chosen, done))
    assert words == [
        "arm off_request: 2 programs were compiled while it was measured",
        "arm draft: no draft was tested",
    ]


def test_a_level_without_a_time_has_no_ratio_and_is_said():
    chosen = plan(levels=(1,), workloads=("code",), arms=("draft", "off_request"), requests=1)
    once = {"pieces": answer(tokens=8).pieces[:1]}
    done = change(run(chosen, EVEN), 0, Cell("1", 1, "code", "greedy"), 0, 0, **once)
    assert ratios(chosen, done) == []
    assert "level 1: no ratio over off_request, for want of a time" in unchecked(chosen, done, [])


def test_without_the_drafted_arm_there_are_no_ratios():
    chosen = plan(arms=("off_request", "off_server"))
    assert ratios(chosen, run(chosen, EVEN)) == []


def test_figures_of_a_receipt_count_what_held():
    chosen = plan()
    done = run(chosen, {**EVEN, "draft": (4.0, 5.0)})
    found = ratios(chosen, done)
    told = figures(chosen, done, found, 0.95, ["something"])
    assert (told["judged"], told["held"], told["unchecked"]) == (4, 0, ["something"])
    assert told["order"] == ["draft", "off_request", "off_server", "off_server", "off_request", "draft"]
    assert told["ratios"]["2 over off_server, edit greedy"]["pairs"] == pytest.approx([1.0, 0.8])
    cell = told["cells"]["draft-level-2-code-greedy"]
    assert (cell["drafted"], cell["accepted"], cell["tokens"]) == (16, 8, 32)
