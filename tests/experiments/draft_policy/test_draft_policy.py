"""The policy stays within its bounds on the named traces, and the bounds can fail."""

from dataclasses import replace

import numpy as np
import pytest

from checkpoints.commands import EXIT_USAGE, execute
from experiments.draft_policy import __main__ as command
from experiments.draft_policy.hindsight import fixed_ms
from experiments.draft_policy.machine import Clock, Described, Noise, Recorded
from experiments.draft_policy.scenarios import BEST_LEAST, PLAIN_LEAST, SCENARIOS, judge
from experiments.draft_policy.simulate import make_trace, simulate
from fnx_jax.engine.drafting.layout import lay_out
from fnx_jax.engine.drafting.policy import DraftPolicy
from fnx_jax.engine.drafting.settings import DraftSettings
from fnx_jax.engine.drafting.streams import Window

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
NAMED = (
    "chat, 2 streams",
    "chat, 4 streams",
    "chat, 2 streams, offloaded",
    "chat, 4 streams, offloaded",
    "prose, 2 streams",
    "prose, 2 streams, offloaded",
    "code, 1 stream, offloaded",
    "no acceptance, 1 stream",
    "no acceptance, 4 streams",
    "no acceptance, offloaded",
    "64-token chats",
    "64-token replies, none lands",
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


@pytest.mark.parametrize("name", NAMED)
def test_drafts_cost_nothing_and_little_is_left_on_the_table(name):
    scenario = BY_NAME[name]
    for seed in range(min(3, scenario.workload.streams)):
        verdict = judge(scenario, seed, 2000)
        assert verdict.of_plain >= PLAIN_LEAST and verdict.of_best >= BEST_LEAST, (seed, verdict)
        assert verdict.result.tested > 0, "no draft was tried: nothing is known"


@pytest.mark.parametrize("name", ["switching, 4 streams", "code, 4 streams, resident"])
def test_drafts_pay_where_some_text_is_good(name):
    assert judge(BY_NAME[name], 0, 2000).of_plain > 1


def test_without_the_guard_the_bounds_fail():
    verdict = judge(BY_NAME["no acceptance, 1 stream"], 0, 1000, DraftSettings(plain_guard=False))
    assert verdict.of_plain < 0.9 and not verdict.holds


def test_a_guard_that_never_drafts_fails_where_drafts_pay():
    verdict = judge(BY_NAME["prose, 2 streams, resident"], 0, 1000, DraftSettings(plain_margin=9.0))
    assert verdict.of_plain >= PLAIN_LEAST and not verdict.holds


def test_probes_without_doubling_waits_cost_more():
    scenario = BY_NAME["no acceptance, offloaded"]
    eager = judge(scenario, 0, 2000, DraftSettings(rate_guard=True, plain_wait_first=1, plain_wait_most=1))
    assert eager.of_plain < PLAIN_LEAST <= judge(scenario, 0, 2000).of_plain


@pytest.mark.parametrize("name", ["64-token chats, 4 streams", "code, 4 streams, resident"])
@pytest.mark.parametrize("depth", [0, 3, 9])
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
    flags = ["--seeds=1", "--tokens=1000", "--only=no acceptance, 1"]
    assert execute(command.main, command.FLAGS, ["draft_policy", *flags]) == 0
    assert "1 of 1" in capsys.readouterr().out
    assert execute(command.main, command.FLAGS, ["draft_policy", *flags, "--no-plain-guard"]) == 1
    assert "0 of 1" in capsys.readouterr().out
    assert execute(command.main, command.FLAGS, ["draft_policy", "--only=nothing"]) == EXIT_USAGE


def test_figures_count_what_held():
    scenario = BY_NAME["no acceptance, 1 stream"]
    good = judge(scenario, 0, 1000)
    figures = command.figures({scenario.name: [good, replace(good, of_plain=0.5)]})
    assert figures["judged"] == 2 and figures["held"] == 1 and figures["of_plain_least_seen"] == 0.5
