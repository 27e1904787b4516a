"""The policy stays within its bounds on the named traces, and the bounds can fail."""

from dataclasses import replace

import numpy as np
import pytest

from checkpoints.commands import EXIT_USAGE, execute
from experiments.draft_policy import __main__ as command
from experiments.draft_policy.adversary import CREDULOUS, CREDULOUS_LEAST, adversary
from experiments.draft_policy.hindsight import fixed_ms
from experiments.draft_policy.machine import Clock, Described, Noise, Recorded
from experiments.draft_policy.scenarios import (
    BEST_LEAST,
    PLAIN_LEAST,
    SCENARIOS,
    Verdict,
    hold,
    judge,
    of_pooled_best,
)
from experiments.draft_policy.simulate import make_trace, simulate
from fnx_jax.engine.drafting.layout import lay_out
from fnx_jax.engine.drafting.policy import DraftPolicy
from fnx_jax.engine.drafting.settings import DraftSettings
from fnx_jax.engine.drafting.streams import Window

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
NAMED = (
    ("chat, 2 streams", 0),
    ("chat, 4 streams", 1),
    ("chat, 4 streams, offloaded", 0),
    ("prose, 2 streams, offloaded", 1),
    ("code, 1 stream, offloaded", 2),
    ("no acceptance, 1 stream", 0),
    ("no acceptance, offloaded", 1),
    ("64-token chats", 2),
)


class Fixed:
    """A drafter of one depth."""

    def __init__(self, depth):
        self.depth = depth

    def windows(self, streams, rows, row_tile):
        offers, used = [], 0
        for s in streams:  # in their own order, as hindsight lays them
            offers += lay_out([Window(s.order, "head", s.held)], [len(s.held)], [s.room], 16 - used % 16, 16)
            used += 1 + offers[-1].tested
        return offers

    def note_round(self, outcomes, ms, prompt_rows=0):
        pass

    def depths(self, streams):
        return tuple(min(self.depth, s.room - 1) for s in streams)

    def note_draft(self, lanes, steps, ms):
        pass

    def forget(self, order):
        pass


@pytest.mark.parametrize(("name", "seed"), NAMED)
def test_drafts_cost_nothing_and_little_is_left_on_the_table(name, seed):
    verdict = judge(BY_NAME[name], seed, 2000)
    assert verdict.of_plain >= PLAIN_LEAST and verdict.of_best >= BEST_LEAST, verdict
    assert verdict.result.tested > 0, "no draft was tried: nothing is known"


def test_drafts_that_were_unlucky_at_first_are_not_given_up():
    """The first rounds of this trace land two drafts of ten."""
    assert judge(BY_NAME["chat, 4 streams, resident"], 0, 2000).of_best >= BEST_LEAST


def test_tiles_are_filled_where_they_cost_more_than_rows():
    assert judge(BY_NAME["code, 4 streams, resident"], 0, 1000).of_plain > 2.1


@pytest.mark.parametrize("seed", [4, 8, 9, 11])
def test_a_policy_that_takes_every_draft_for_sure_loses_what_its_account_holds_and_no_more(seed):
    scenario = adversary(seed, CREDULOUS_LEAST)
    assert judge(scenario, seed, 2000, DraftSettings(**CREDULOUS)).holds
    unlimited = DraftSettings(**CREDULOUS, loss_rounds=1e9, gain_rounds=1e9)
    assert not judge(scenario, seed, 500, unlimited).holds


def test_copies_that_do_not_keep_what_they_promise_are_limited_too():
    scenario = BY_NAME["forms, 2 streams, offloaded"]
    assert judge(scenario, 1, 1000).of_plain >= PLAIN_LEAST


def test_without_the_guard_the_bounds_fail():
    verdict = judge(BY_NAME["no acceptance, 1 stream"], 0, 1000, DraftSettings(plain_guard=False))
    assert verdict.of_plain < 0.9 and not verdict.holds


def test_a_guard_that_never_drafts_fails_where_drafts_pay():
    verdict = judge(BY_NAME["code, 1 stream, offloaded"], 0, 1000, DraftSettings(plain_margin=9.0))
    assert verdict.of_plain >= PLAIN_LEAST and not verdict.holds


def test_a_best_depth_of_all_seeds_owes_less_to_luck_than_one_of_each():
    base = judge(BY_NAME["no acceptance, 1 stream"], 0, 200)
    pooled = replace(base.scenario, pooled=True)
    own = base.own_ms
    row = [Verdict(pooled, base.result, (own, own, 0.9 * own)), Verdict(pooled, base.result, (own, 0.9 * own, own))]
    assert [verdict.of_best for verdict in row] == pytest.approx([0.9, 0.9])
    assert of_pooled_best(row) == pytest.approx(0.95) and hold([*row, *row, Verdict(pooled, base.result, (own,) * 3)])
    assert not hold([row[0], row[0]])
    assert not hold([replace(verdict, scenario=base.scenario) for verdict in row])


@pytest.mark.parametrize("name", ["64-token chats, 4 streams", "code, 4 streams, resident"])
@pytest.mark.parametrize("depth", [0, 9])
def test_hindsight_agrees_with_the_simulation_of_a_fixed_depth(name, depth):
    trace = make_trace(BY_NAME[name].workload, 3, 400)
    result = simulate(trace, Fixed(depth), Clock(Noise(), np.random.default_rng(0)))
    assert result.ms / result.tokens == pytest.approx(fixed_ms(trace, depth))


def test_a_seed_decides_everything():
    scenario = BY_NAME["switching, 4 streams"]
    assert judge(scenario, 5, 300).result == judge(scenario, 5, 300).result
    assert judge(scenario, 5, 300).result != judge(scenario, 6, 300).result


def test_the_clock_errs_and_the_figures_do_not():
    clock = Clock(Noise(), np.random.default_rng(0))
    times = [clock.read(10.0) for _ in range(4000)]
    assert np.median(times) == pytest.approx(10, rel=0.02)
    assert 0.005 < np.mean(np.array(times) > 30) < 0.02
    trace = make_trace(BY_NAME["no acceptance, 1 stream"].workload, 0, 200)
    results = [simulate(trace, Fixed(0), Clock(Noise(), np.random.default_rng(seed))).ms for seed in (1, 2)]
    assert results[0] == results[1]


def test_rows_cost_what_distinct_experts_they_add():
    machine = Described(0.0, 0.0, 1.0, 1.0, expert_ms=1.0, experts=100, active=10)
    assert machine.round_ms(1, 1) == pytest.approx(10) and machine.round_ms(1, 2) == pytest.approx(19)


def test_recorded_costs_take_the_place_of_machines(tmp_path, capsys):
    policy = DraftPolicy(DraftSettings(), 15)
    scenario = BY_NAME["chat, 2 streams"]
    simulate(make_trace(scenario.workload, 0, 400), policy, Clock(Noise(0, 0, 1), np.random.default_rng(0)))
    machine = Recorded(policy.costs.table())
    assert machine.round_ms(2, 2) == pytest.approx(scenario.workload.machine.round_ms(2, 2), rel=0.05)
    path = tmp_path / "costs.json"
    path.write_text("[]")
    assert execute(command.main, command.FLAGS, ["draft_policy", f"--costs={path}"]) == EXIT_USAGE
    assert "--costs" in capsys.readouterr().err


def test_the_command_shows_a_row_for_each_trace_and_says_whether_bounds_hold(capsys):
    flags = ["--seeds=1", "--tokens=500", "--only=no acceptance, 1"]
    assert execute(command.main, command.FLAGS, ["draft_policy", *flags]) == 0
    assert "1 of 1" in capsys.readouterr().out
    assert execute(command.main, command.FLAGS, ["draft_policy", *flags, "--no-plain-guard"]) == 1
    assert "0 of 1" in capsys.readouterr().out
    assert execute(command.main, command.FLAGS, ["draft_policy", "--only=nothing"]) == EXIT_USAGE


def test_figures_count_what_held():
    scenario = BY_NAME["no acceptance, 1 stream"]
    good = judge(scenario, 0, 1000)
    figures = command.figures({scenario.name: [good, replace(good, fixed_ms=(good.own_ms / 2, *good.fixed_ms[1:]))]})
    assert figures["judged"] == 2 and figures["held"] == 1 and figures["of_plain_least_seen"] == 0.5
