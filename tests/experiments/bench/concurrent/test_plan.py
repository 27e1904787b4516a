"""Order, cells, requests, and what is refused before anything starts."""

from itertools import pairwise

import pytest

from checkpoints.commands import UsageError
from experiments.bench.concurrent.plan import (
    ARMS,
    SAMPLINGS,
    Cell,
    blocks,
    body,
    cells,
    check_plan,
    read_levels,
    waves,
)
from experiments.bench.concurrent.prompts import PROMPTS
from experiments.bench.concurrent.servers import check_fits, check_fresh, check_running
from tests.experiments.bench.concurrent.stub import plan, stub_server


def test_arms_go_there_and_back_so_that_drift_cancels():
    order = blocks(("a", "b", "c"), 2)
    assert [arm for _, arm in order] == list("abccba" * 2)
    assert [half for half, _ in order] == [half for half in range(4) for _ in range(3)]
    places = {name: sum(i for i, (_, arm) in enumerate(order) if arm == name) for name in "abc"}
    assert len(set(places.values())) == 1


def test_serial_cells_are_the_drafted_arms_alone():
    chosen = plan(alone=True, serial=True, workloads=("code",))
    assert [cell.level for cell in cells(chosen, "draft")] == ["alone", "serial", "1", "2"]
    assert [cell.level for cell in cells(chosen, "off_request")] == ["alone", "1", "2"]


@pytest.mark.parametrize(
    ("level", "wanted"),
    [
        ("4", [range(0, 4)]),
        ("2", [range(0, 2), range(2, 4)]),
        ("1", [range(i, i + 1) for i in range(3)]),
        ("alone", [range(i, i + 1) for i in range(4)]),
    ],
)
def test_waves_are_full_and_alone_covers_every_level(level, wanted):
    chosen = plan(levels=(1, 2, 4), requests=3, alone=True)
    cell = next(cell for cell in cells(chosen, "draft") if cell.level == level)
    assert waves(chosen, cell) == wanted


def test_a_request_is_the_same_in_every_arm_but_for_its_drafts():
    chosen = plan(alone=True, serial=True)
    bodies = {arm: body(chosen, Cell("2", 2, "code", "seeded"), arm, 5) for arm in ARMS}
    assert bodies["draft"] == bodies["off_server"]
    assert bodies["off_request"] == bodies["draft"] | {"draft": False}
    serial = body(chosen, Cell("serial", 1, "code", "seeded"), "draft", 5)
    assert serial == bodies["off_request"]
    assert serial["cache_prompt"] is False and serial["seed"] == 6


def test_requests_differ_by_seed_and_prompt():
    seen = [body(plan(), Cell("1", 1, "chat", "seeded"), "draft", n) for n in range(5)]
    assert all(one != other for one, other in pairwise(seen))
    assert seen[0]["prompt"] == seen[4]["prompt"] and seen[0]["seed"] != seen[4]["seed"]


def test_every_workload_has_prompts_and_an_edit_repeats_itself():
    assert set(PROMPTS) == {"code", "chat", "prose", "edit"} and set(SAMPLINGS) == {"greedy", "seeded"}
    assert all(len(set(prompts)) == 4 for prompts in PROMPTS.values())
    for prompt in PROMPTS["edit"]:
        lines = [line for line in prompt.splitlines() if line.strip()]
        after = lines[next(i for i, line in enumerate(lines) if line.startswith("# After")) + 1 :]
        assert any(lines.count(line) > 1 for line in after)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"arms": ("draft", "fast")}, "--arms: 'fast' is none of draft, off_request, off_server"),
        ({"arms": ()}, "--arms: at least one"),
        ({"arms": ("draft", "draft")}, "--arms: draft is given twice"),
        ({"levels": (1, 0)}, "--levels: 0 streams"),
        ({"levels": (2, 2)}, "--levels: 2 is given twice"),
        ({"levels": ()}, "--levels: nothing to measure"),
        ({"workloads": ("poem",)}, "--workloads: 'poem'"),
        ({"samplings": ("hot",)}, "--samplings: 'hot'"),
        ({"serial": True, "arms": ("off_request",)}, "--serial: .*draft"),
    ],
)
def test_plans_that_make_no_sense_are_refused_by_name(changes, says):
    with pytest.raises(UsageError, match=says):
        check_plan(plan(**changes))


def test_a_plan_of_requests_alone_is_one():
    chosen = plan(levels=(), alone=True)
    assert check_plan(chosen) is chosen
    assert len(waves(chosen, next(cells(chosen, "draft")))) == 2


def test_levels_are_whole_numbers():
    assert read_levels(["1", "8"]) == (1, 8) and read_levels([""]) == ()
    with pytest.raises(UsageError, match="--levels=1,two"):
        read_levels(["1", "two"])


def test_more_streams_than_lanes_and_long_prompts_are_refused():
    with pytest.raises(UsageError, match="--levels: 2 streams, more than the 1 lanes"):
        check_fits(plan(), 1, None, len)
    check_fits(plan(), 2, 18, lambda prompt: 10)
    with pytest.raises(UsageError, match="prompt 0 of workload code has 11 tokens.* context of 18"):
        check_fits(plan(), 2, 18, lambda prompt: 11)


def test_prompts_are_counted_by_the_checkpoints_own_tokenizer(tmp_path):
    from checkpoints.commands import DEMO

    check_fresh(plan(), str(DEMO), 2, 1024)
    with pytest.raises(UsageError, match="prompt 0 of workload code has 128 tokens"):
        check_fresh(plan(), str(DEMO), 2, 130)
    with pytest.raises(UsageError, match=f"--model={tmp_path}: "):
        check_fresh(plan(), str(tmp_path), 2, 1024)


def test_a_running_servers_limits_are_its_own():
    chosen = plan(arms=("draft", "off_request"))
    with stub_server() as (stub, client):
        check_running(chosen, client)
        stub.lanes = 1
        with pytest.raises(UsageError, match="more than the 1 lanes"):
            check_running(chosen, client)
        stub.lanes, stub.context = 4, 12
        with pytest.raises(UsageError, match="prompt 0 of workload code .* context of 12"):
            check_running(chosen, client)
        with pytest.raises(UsageError, match="--arms: off_server"):
            check_running(plan(), client)
        assert not stub.requests
