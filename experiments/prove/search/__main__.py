"""Looks for an unequal cell over random tiny networks: python -m experiments.prove.search --configs=100 --seed=0

Each trial is a network, its random weights and a way to run it, drawn from the seed and the trial's number: heads,
experts, widths, windows, tables, vocabulary, lanes, cuts. Every stream alone, row by row, on one device, is held
against the streams in company, in chunks, over random rounds with rejected drafts and commits, in poisoned lanes, with
drafts, and all of it on 2 or 4 devices; raw logits of every row bit for bit, and the replies.
Exit codes: 0 all equal, 1 where a cell is unequal or unchecked, 2 usage.
"""

import json
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path

import jax
from absl import flags

from checkpoints.commands import UsageError, run
from experiments.prove.search.cells import Cell, failed
from experiments.prove.search.log import Line, Log
from experiments.prove.search.trial_run import DEVICES_MOST, run_trial
from experiments.prove.search.trials import draw_trial
from experiments.receipts import Origin, make_receipt, note_origin, write_receipt
from fnx_jax import backend

FLAGS = flags.FlagValues()
flags.DEFINE_integer("configs", 100, "Trials in all, numbered from 0.", 1, flag_values=FLAGS)
flags.DEFINE_integer("first", 0, "Number of the first trial to run.", 0, flag_values=FLAGS)
flags.DEFINE_integer("seed", 0, "Seed of the search.", 0, flag_values=FLAGS)
flags.DEFINE_integer("only", None, "Run this one trial and show every cell.", 0, flag_values=FLAGS)
flags.DEFINE_string(
    "out", None, "File of JSON lines, one a trial; trials it holds are not repeated.", flag_values=FLAGS
)
flags.DEFINE_bool("every_count", False, "Run on 2 and on 4 devices where a trial can.", flag_values=FLAGS)
flags.DEFINE_bool("receipt", False, "Write a receipt of the whole search.", flag_values=FLAGS)


def main(positional: list[str]) -> int:
    """Runs what the flags ask for."""
    if positional:
        raise UsageError(f"unexpected {' '.join(positional)}")
    if FLAGS.receipt and (FLAGS.only is not None or FLAGS.first):
        raise UsageError("--receipt is of a whole search, --only and --first are of a part")
    if FLAGS.first >= FLAGS.configs:
        raise UsageError(f"--first={FLAGS.first} of {FLAGS.configs} trials")
    with tempfile.TemporaryDirectory() as programs:
        _configure_jax(programs)
        return search()


def _configure_jax(programs: str) -> None:
    """CPU devices for every number of ranks; programs that trials share, such as draws, are kept for the search."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES_MOST)
    jax.config.update("jax_compilation_cache_dir", programs)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def search() -> int:
    """Runs the trials that are not done; 0 where every cell is equal, or refused with cause."""
    fingerprint = backend.fingerprint("served and float32")
    origin = note_origin(_command()) if FLAGS.out or FLAGS.receipt else None
    log = Log(Path(FLAGS.out) if FLAGS.out else None, FLAGS.seed, _source(origin, fingerprint.digest()))
    numbers = range(FLAGS.first, FLAGS.configs) if FLAGS.only is None else [FLAGS.only]
    for number in numbers:
        if number not in log.done:
            log.add(_line(FLAGS.seed, number, FLAGS.every_count), verbose=FLAGS.only is not None)
    figures = log.figures(numbers)
    print(json.dumps(figures, indent=1))
    if origin is not None and FLAGS.receipt:
        receipt = make_receipt(
            origin,
            "search",
            fingerprint.device,
            figures,
            fingerprint=asdict(fingerprint),
            hashes={"cells": log.digest(numbers)},
        )
        print(write_receipt(receipt))
    return int(any(failed(log.done[number].cells) for number in numbers))


def _command() -> list[str]:
    """What repeats the search, whatever part of it a file already holds."""
    program = ["python", "-m", "experiments.prove.search", f"--configs={FLAGS.configs}", f"--seed={FLAGS.seed}"]
    return program + ["--every_count"] * FLAGS.every_count


def _source(origin: Origin | None, fingerprint: str) -> str:
    """What computes a trial's cells, and which: lines of another source do not count as done."""
    if origin is None:
        return ""
    return f"{origin.commit}{'+changes' * origin.dirty} {fingerprint}{' every count' * FLAGS.every_count}"


def _line(seed: int, number: int, every_count: bool) -> Line:
    started_s = time.monotonic()
    trial = draw_trial(seed, number)
    cells = []
    try:
        cells.extend(run_trial(trial, every_count))
    except Exception as error:  # a trial that cannot be run is a finding, and the others must be run all the same
        traceback.print_exc()
        cells.append(Cell("error", 0, "", "unequal", first=f"{type(error).__name__}: {error}"))
    jax.clear_caches()  # no later trial has the same shapes
    return Line(trial, tuple(cells), time.monotonic() - started_s)


if __name__ == "__main__":
    run(main, FLAGS)
