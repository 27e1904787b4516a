"""What do drafts cost or gain with several streams at once? python -m experiments.bench.concurrent --alone --serial

Arms: `draft`, a server as by default; `off_request`, the same with `"draft": false` in every request; `off_server`, one
without drafts at all. Each turn of an arm is a fresh server, warmed up; turns go there and back, A B C C B A, so that
what a shared machine does to one it does to all. With --beside they do so at each cell, of servers that are all there
from the start: for machines whose speed changes within minutes. --levels are requests in flight at once. --alone also
measures each request of any level on its own first; --serial the same without drafts, on the drafted arm's server. A
request must have the same tokens in every arm, alone and in company; where it has not, nothing is compared.

Exit codes: 0; 1 where drafts decode slower than --gate of another arm at a level or alone, all workloads together,
or where something went unchecked; 2 usage; 3 tokens differ; 4 a server did not start or answer.

Host side. Read next: plan.py.
"""

import sys
from collections.abc import Sequence

from absl import flags

from checkpoints.commands import DEMO, UsageError, run
from experiments.bench.concurrent.compare import Unequal, digests, ratios, require_equal, unchecked, unmet
from experiments.bench.concurrent.measure import Block, run_beside, run_blocks
from experiments.bench.concurrent.plan import (
    ARMS,
    DRAFT,
    LEAST_TOKENS,
    OFF_SERVER,
    SAMPLINGS,
    Plan,
    check_plan,
    read_levels,
)
from experiments.bench.concurrent.prompts import PROMPTS
from experiments.bench.concurrent.report import figures, show, verdict
from experiments.bench.concurrent.servers import (
    Open,
    ServerFailed,
    check_fresh,
    check_running,
    fresh_servers,
    running_server,
)
from experiments.http_client import client_for
from experiments.receipts import Origin, make_receipt, note_origin, slug, write_receipt
from experiments.server_process import ended_by_signals

UNMET, UNEQUAL, FAILED, INTERRUPTED = 1, 3, 4, 130

FLAGS = flags.FlagValues()
flags.DEFINE_string("model", str(DEMO), "Folder of the checkpoint.", flag_values=FLAGS)
flags.DEFINE_string("url", None, "A server that runs already, in place of fresh ones.", flag_values=FLAGS)
flags.DEFINE_string("key", None, "Its API key.", flag_values=FLAGS)
flags.DEFINE_list("arms", None, f"Of {', '.join(ARMS)}; all that can be.", flag_values=FLAGS)
flags.DEFINE_list("levels", ["1", "2", "4", "8"], "Numbers of streams.", flag_values=FLAGS)
flags.DEFINE_list("workloads", list(PROMPTS), "Kinds of prompts.", flag_values=FLAGS)
flags.DEFINE_list("samplings", list(SAMPLINGS), "How tokens are drawn.", flag_values=FLAGS)
flags.DEFINE_bool("alone", False, "Measure each request on its own first.", flag_values=FLAGS)
flags.DEFINE_bool("serial", False, "The same without drafts, on the drafted arm's server.", flag_values=FLAGS)
flags.DEFINE_integer("requests", 4, "Of a cell at least; waves are filled.", 1, flag_values=FLAGS)
flags.DEFINE_integer("repeats", 1, "Times each cell is measured in a turn.", 1, flag_values=FLAGS)
flags.DEFINE_integer("sets", 1, "Times that the arms go there and back.", 1, flag_values=FLAGS)
flags.DEFINE_integer("max_tokens", 64, "Tokens of a reply.", LEAST_TOKENS, flag_values=FLAGS)
flags.DEFINE_integer("warm_tokens", 32, "Tokens of a reply while a server is warmed up.", 1, flag_values=FLAGS)
flags.DEFINE_integer("seed", 1, "Of a cell's first request; the next ones count on.", flag_values=FLAGS)
flags.DEFINE_bool(
    "beside", False, "Start all servers at once, and let arms take turns at each cell.", flag_values=FLAGS
)
flags.DEFINE_integer("lanes", 8, "Lanes of each server.", 1, 64, flag_values=FLAGS)
flags.DEFINE_integer("context", 1024, "Positions of a prompt and its reply together.", 2, flag_values=FLAGS)
flags.DEFINE_multi_string("serve", [], "One more flag for every server; may be repeated.", flag_values=FLAGS)
flags.DEFINE_float("start_seconds", 900.0, "How long a start may take.", 1.0, flag_values=FLAGS)
flags.DEFINE_float("gate", 0.95, "Least ratio at each level; 0 judges none.", 0.0, flag_values=FLAGS)
flags.DEFINE_bool("receipt", False, "Write a receipt into experiments/results.", flag_values=FLAGS)


def read_plan() -> Plan:
    """The run that the flags ask for. Raises UsageError."""
    possible = [arm for arm in ARMS if not (FLAGS.url and arm == OFF_SERVER)]
    plan = check_plan(
        Plan(
            arms=tuple(possible if FLAGS.arms is None else FLAGS.arms),
            levels=read_levels(FLAGS.levels),
            workloads=tuple(FLAGS.workloads),
            samplings=tuple(FLAGS.samplings),
            alone=FLAGS.alone,
            serial=FLAGS.serial,
            requests=FLAGS.requests,
            repeats=FLAGS.repeats,
            sets=FLAGS.sets,
            max_tokens=FLAGS.max_tokens,
            warm_tokens=min(FLAGS.warm_tokens, FLAGS.max_tokens),
            seed=FLAGS.seed,
        )
    )
    if FLAGS.gate and not (DRAFT in plan.arms and len(plan.arms) > 1):
        raise UsageError(f"--gate: it needs arm {DRAFT} and another; --gate=0 judges nothing")
    return plan


def open_servers(plan: Plan) -> Open:
    """Where requests go, once it is known that they fit. Raises UsageError."""
    if FLAGS.url:
        check_running(plan, client_for(FLAGS.url, FLAGS.key))
        return running_server(FLAGS.url, FLAGS.key)
    check_fresh(plan, FLAGS.model, FLAGS.lanes, FLAGS.context)
    own = [f"--model={FLAGS.model}", f"--lanes={FLAGS.lanes}", f"--context={FLAGS.context}"]
    return fresh_servers([*FLAGS.serve, *own], FLAGS.start_seconds)


def main(positional: list[str]) -> int:
    """Runs the bench; prints tables and what the gate says."""
    if positional:
        raise UsageError(f"unexpected {' '.join(positional)}; nothing but flags was wanted")
    plan = read_plan()
    origin = note_origin() if FLAGS.receipt else None
    try:
        with ended_by_signals():
            measure = run_beside if FLAGS.beside else run_blocks
            done = measure(plan, open_servers(plan), _say, lambda done: _check(plan, done))
        return conclude(plan, done, FLAGS.gate, origin)
    except Unequal as error:
        _say(f"tokens differ, so nothing is compared: {error}")
        return UNEQUAL
    except ServerFailed as error:
        _say(str(error))
        return FAILED
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED


def conclude(plan: Plan, done: Sequence[Block], gate: float, origin: Origin | None) -> int:
    """Prints what was found and writes the receipt. Returns the exit code. Raises Unequal."""
    hashes = digests(_check(plan, done))
    found = ratios(plan, done)
    left = unchecked(plan, done, found)
    show(plan, done, found, hashes)
    print(verdict(found, gate, left))
    if origin is not None:
        info = done[0].info
        receipt = make_receipt(
            origin,
            "concurrent",
            ", ".join(info.get("devices") or ["unknown"]),
            figures(plan, done, found, gate, left),
            fingerprint=info.get("fingerprint"),
            hashes={slug(case): digest for case, digest in hashes.items()},
        )
        print(f"receipt: {write_receipt(receipt)}")
    return UNMET if left or unmet(found, gate) else 0


def _check(plan: Plan, done: Sequence[Block]) -> dict[str, str]:
    """The hashes of equal replies by equal programs. Raises Unequal."""
    one = done[0].info.get("fingerprint")
    for block in done[1:]:
        if (other := block.info.get("fingerprint")) != one:
            raise Unequal(f"arms {done[0].arm} and {block.arm} ran with other fingerprints, {one} and {other}")
    return require_equal(plan, done)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main, FLAGS)
