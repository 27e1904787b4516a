"""Do drafts ever cost anything? python -m experiments.draft_policy [--seeds=5] [--adversaries=20] [--costs=FILE]

Runs the draft policy of the server, which knows nothing at first, over named traces: who drafts what and which drafts
land is made up, deterministic given the seed, and the same for everybody. Clocks err by a tenth, and now and then
fivefold; the policy sees only them, the figures count true time. Two bounds: 0.98 of the rate of plain rounds on every
trace, and 0.95 of the best fixed depth in hindsight where a text stays as it is. Adversaries are traces that were drawn
at random; they also meet a policy that takes every draft for sure, which nothing but its account keeps from losing
(0.96 of plain). Exits 0 where all bounds hold, else 1. Host side. Read next: scenarios.py, adversary.py, simulate.py,
fnx_jax/engine/drafting/policy.py.
"""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from absl import flags
from rich.console import Console
from rich.table import Table

from checkpoints.commands import UsageError, run
from experiments.draft_policy.adversary import CREDULOUS, CREDULOUS_LEAST, adversary
from experiments.draft_policy.machine import Recorded
from experiments.draft_policy.scenarios import (
    BEST_LEAST,
    PLAIN_LEAST,
    SCENARIOS,
    Scenario,
    Verdict,
    hold,
    judge,
    of_pooled_best,
)
from experiments.receipts import make_receipt, note_origin, slug, write_receipt
from fnx_jax.engine.drafting.settings import DraftSettings

FLAGS = flags.FlagValues()
flags.DEFINE_integer("seeds", 5, "Traces of each name.", 1, flag_values=FLAGS)
flags.DEFINE_integer("adversaries", 20, "Traces drawn at random.", 0, flag_values=FLAGS)
flags.DEFINE_integer("tokens", 2000, "Tokens of a trace, all streams together.", 1, flag_values=FLAGS)
flags.DEFINE_string("only", "", "Run the traces whose name holds this.", flag_values=FLAGS)
flags.DEFINE_string("costs", None, "JSON of a server's recorded times, in place of every machine.", flag_values=FLAGS)
flags.DEFINE_bool("plain_guard", True, "Whether plain rounds compete. Without, the bounds fail.", flag_values=FLAGS)
flags.DEFINE_bool("receipt", False, "Write a receipt into experiments/results.", flag_values=FLAGS)


def main(positional: list[str]) -> int:
    """Judges the policy on every trace; prints a table."""
    if positional:
        raise UsageError("nothing but flags was wanted")
    scenarios = chosen(FLAGS.only, FLAGS.costs)
    origin = note_origin()
    verdicts = {scenario.name: judge_seeds(scenario, FLAGS.seeds, FLAGS.tokens) for scenario in scenarios}
    if FLAGS.adversaries and not FLAGS.only and FLAGS.costs is None:
        seeds = range(FLAGS.adversaries)
        verdicts["adversaries"] = [judge_one(adversary(i), i, FLAGS.tokens, {}) for i in seeds]
        verdicts["adversaries, drafts taken for sure"] = [
            judge_one(adversary(i, CREDULOUS_LEAST), i, FLAGS.tokens, CREDULOUS) for i in seeds
        ]
    show(verdicts)
    if FLAGS.receipt:
        print(write_receipt(make_receipt(origin, "draft_policy", platform.processor() or "CPU", figures(verdicts))))
    return 0 if all(hold(row) for row in verdicts.values()) else 1


def chosen(only: str, costs: str | None) -> list[Scenario]:
    """The scenarios asked for. Raises: UsageError where there are none, or the costs are no table."""
    scenarios = [scenario for scenario in SCENARIOS if only in scenario.name]
    if not scenarios:
        raise UsageError(f"--only={only}: no trace has such a name")
    if costs is None:
        return scenarios
    try:
        machine = Recorded(json.loads(Path(costs).read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UsageError(f"--costs={costs}: {error}") from error
    return [replace(scenario, workload=replace(scenario.workload, machine=machine)) for scenario in scenarios]


def judge_seeds(scenario: Scenario, seeds: int, tokens: int) -> list[Verdict]:
    """One verdict a seed."""
    return [judge_one(scenario, seed, tokens, {}) for seed in range(seeds)]


def judge_one(scenario: Scenario, seed: int, tokens: int, settings: Mapping[str, Any]) -> Verdict:
    """The verdict of one seed. settings: other than the usual ones."""
    chosen = DraftSettings(rate_guard=scenario.offloaded, plain_guard=FLAGS.plain_guard, **settings)
    return judge(scenario, seed, tokens, chosen)


def figures(verdicts: dict[str, list[Verdict]]) -> dict[str, Any]:
    """For a receipt: bounds, and by trace every seed's ratios."""
    rows = {
        slug(name): {
            "of_plain": [verdict.of_plain for verdict in row],
            "of_best": [verdict.of_best for verdict in row],
            "best_depth": [verdict.best for verdict in row],
            "of_pooled_best": of_pooled_best(row),
            "stationary": row[0].scenario.workload.text.stationary,
            "seeds_held": sum(verdict.holds for verdict in row),
            "holds": hold(row),
            "first_seed": asdict(row[0].result),
        }
        for name, row in verdicts.items()
    }
    everything = [verdict for row in verdicts.values() for verdict in row]
    return {
        "plain_least": PLAIN_LEAST,
        "best_least": BEST_LEAST,
        "credulous_least": CREDULOUS_LEAST,
        "of_plain_least_seen": min(verdict.of_plain for verdict in everything),
        "judged": len(everything),
        "held": sum(verdict.holds for verdict in everything),
        "traces_judged": len(verdicts),
        "traces_held": sum(hold(row) for row in verdicts.values()),
        "traces": rows,
    }


def show(verdicts: dict[str, list[Verdict]]) -> None:
    """Prints the least and the middle of each trace's seeds, and the rate beside the best depth of all of them."""
    table = Table("trace", "of plain", "", "of the best depth", "", "of all", "depth", "held", "", box=None)
    for name, row in verdicts.items():
        best, pooled, depth = ["-", "-"], "-", "-"
        if row[0].scenario.workload.text.stationary:
            best, pooled = _least_and_middle([verdict.of_best for verdict in row]), f"{of_pooled_best(row):.3f}"
            depths = sorted({verdict.best for verdict in row})
            depth = f"{depths[0]}" if len(depths) == 1 else f"{depths[0]} to {depths[-1]}"
        held = f"{sum(verdict.holds for verdict in row)} of {len(row)}"
        plain = _least_and_middle([verdict.of_plain for verdict in row])
        table.add_row(name, *plain, *best, pooled, depth, held, "" if hold(row) else "missed")
    Console(width=140).print(table)


def _least_and_middle(ratios: Sequence[float]) -> list[str]:
    ordered = sorted(ratios)
    return [f"{ordered[0]:.3f}", f"{ordered[len(ordered) // 2]:.3f}"]


if __name__ == "__main__":
    run(main, FLAGS)
