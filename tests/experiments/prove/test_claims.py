"""What is unchecked is never a pass, and whatever the system can do and the proof does not run is red."""

import itertools

import pytest

from experiments.prove.cells import AXES, Cell
from experiments.prove.claims import CLAIMS, Result, green, tally, waiting
from experiments.prove.compare import Difference
from experiments.prove.evidence import Evidence, unexercised
from experiments.prove.features import FEATURES, RUNNABLE, surface
from experiments.prove.plan import make_plan

MIXED = Evidence(
    9, shared=4, mixed=2, longest_piece=16, cut_prompts=1, accepted=3, rejected=2, unlikely=5, dealt=4, resumed=2, odd=1
)
COMPANY = Result(Cell(streams=2), evidence=MIXED, margin=0.5)
REST = [
    Result(Cell(drafts="proposed"), evidence=MIXED, margin=0.25),
    Result(Cell(chunk=5), evidence=MIXED),
    Result(Cell(start="resumed"), evidence=MIXED),
    Result(Cell(tp=2), evidence=MIXED),
]
NOT_RUN = [Cell(place="offloaded"), Cell(prefill="deep", streams=2)]


def lines(results, not_run=NOT_RUN):
    return {line.claim: line for line in tally(results, not_run)}


def test_what_waits_for_a_feature_is_unchecked_by_name_and_expected():
    found = waiting(NOT_RUN)
    assert [u.what for u in found] == ["place=offloaded", "prefill=deep"]
    assert all(u.expected and u.why.startswith("comes with ") for u in found)
    assert green(tally([COMPANY, *REST], NOT_RUN), found)


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("load", "offload_experts", "place=offloaded"),
        ("engine", "deep_prefill_rows", "prefill=deep"),
    ],
)
def test_a_feature_that_landed_and_is_not_run_is_red(place, name, value):
    shown = surface()
    found = waiting(NOT_RUN, shown | {place: shown[place] | {name}})
    (odd,) = [u for u in found if not u.expected]
    assert odd.what == value and name in odd.why
    assert not green(tally([COMPANY, *REST], NOT_RUN), found)


def test_every_value_runs_or_waits():
    for axis, values in AXES.items():
        assert {*RUNNABLE[axis]} | {v for a, v in FEATURES if a == axis} == {*values}
        assert getattr(Cell(), axis) in RUNNABLE[axis]


def test_the_table_counts_cells_by_their_subject():
    unequal = Result(Cell(streams=4, tp=2), differences=(Difference("a", 7, "logits"),), margin=0.125)
    found = lines([COMPANY, *REST, unequal])
    solo = found["solo"]
    assert (solo.cells, solo.equal, solo.unequal, solo.unchecked) == (2, 1, 1, 1)
    assert (solo.first, solo.margin) == ("a: logits at position 7", 0.125)
    assert (found["ranks"].cells, found["ranks"].unequal, found["plain"].unequal) == (2, 1, 0)
    assert (found["fresh"].cells, found["place"].cells, found["place"].unchecked) == (1, 0, 1)
    assert not green(list(found.values()), [])


def test_a_cell_that_did_not_exercise_its_subject_is_unexpectedly_unchecked():
    idle = Result(Cell(streams=2), unexercised=("no tile held rows of two lanes",), evidence=MIXED)
    found = lines([idle, *REST])["solo"]
    assert (found.equal, found.unchecked) == (0, 2)
    assert [u.why for u in found.unexpected] == ["no tile held rows of two lanes"]
    assert not green([found], [])


def test_a_failed_cell_is_unequal():
    found = lines([COMPANY, *REST[:2], Result(Cell(tp=2), error="stream 0: error not finite")])["ranks"]
    assert (found.unequal, found.first) == (1, "stream 0: error not finite")


def test_no_mixed_tile_in_all_of_company_is_red():
    apart = Result(Cell(streams=2), evidence=Evidence(9, 4, 0, 16, 1, 3, 2, 5, 4))
    assert lines([apart])["solo"].unexpected[0].why == "no tile held rows of a prompt and of a reply"


def test_a_claim_without_cells_is_red_unless_it_was_left_out():
    assert lines([COMPANY, *REST[:3]])["ranks"].unexpected
    plan = make_plan("quick", [1], seed=0)
    assert plan.left_out == ("ranks",)
    assert not any(line.unexpected for line in tally([COMPANY, *REST[:3]], NOT_RUN, plan.left_out))


CELL = Cell(sampling="seeded", streams=2, drafts="proposed", start="resumed", chunk=5, tp=2)


@pytest.mark.parametrize(
    ("field", "word"),
    [
        ("unlikely", "likeliest"),
        ("shared", "two lanes"),
        ("accepted", "accepted"),
        ("rejected", "rejected"),
        ("longest_piece", "two rows of a prompt"),
        ("cut_prompts", "cut"),
        ("dealt", "split"),
        ("resumed", "behind a kept state"),
        ("odd", "odd row"),
    ],
)
def test_each_piece_of_evidence_is_asked_for(field, word):
    assert unexercised(CELL, MIXED, 30) == []
    (why,) = unexercised(CELL, Evidence(**{**vars(MIXED), field: 0}), 30)
    assert word in why
    assert field == "cut_prompts" or not unexercised(Cell(chunk=1), Evidence(**{**vars(MIXED), field: 0}), 1)


@pytest.mark.parametrize("size", ["pairs", "quick", "origin", "full"])
def test_plans_hold_every_pair_that_can_be_run(size):
    plan = make_plan(size, [1, 2], seed=3)
    kept = {
        axis: {getattr(cell, axis) for cell in (*plan.cells, *plan.not_run)} & {*RUNNABLE[axis], 2} for axis in AXES
    }
    met = {pair for cell in plan.cells for pair in itertools.combinations(vars(cell).items(), 2)}
    for one, other in itertools.combinations(kept, 2):
        assert {((one, a), (other, b)) for a in kept[one] for b in kept[other]} <= met
    assert {cell.tp for cell in plan.cells} == {1, 2}
    assert all(any(belongs(cell) for cell in plan.not_run) for belongs in CLAIMS.values())
    assert plan.workload.seed == 3
