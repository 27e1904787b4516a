"""Proves that tokens depend on checkpoint, prompt, parameters and seed alone: python -m experiments.prove

Serves the same requests alone, in company, in other chunks, with drafts, on several devices, and compares the logits of
every emitted position bit for bit. Exit codes: 0 all equal, 1 not, 2 usage, 3 checkpoint, 4 does not fit, 5 device.
"""

import sys
import time
from pathlib import Path

from absl import flags

from checkpoints.commands import DEMO, UsageError, run
from experiments.prove.report import Proof, print_proof, require_rich, write_json

EXIT_RED, EXIT_DOES_NOT_FIT, EXIT_DEVICE = 1, 4, 5

FLAGS = flags.FlagValues()
flags.DEFINE_string("model", str(DEMO), "Folder of the checkpoint.", flag_values=FLAGS)
flags.DEFINE_enum("dtype", None, ["float32"], "float32 keeps operands and caches float32.", flag_values=FLAGS)
flags.DEFINE_list("tp", ["1", "2", "4"], "Numbers of devices, powers of two.", flag_values=FLAGS)
flags.DEFINE_integer("seed", 0, "Seed of prompts and draws.", 0, 2**31 - 1, flag_values=FLAGS)
flags.DEFINE_bool("quick", False, "Fewer and shorter cells.", flag_values=FLAGS)
flags.DEFINE_bool("full", False, "Every combination instead of every pair.", flag_values=FLAGS)
flags.DEFINE_enum("preset", None, ["origin"], "origin: long prompts, long replies, 1 and 4 streams.", flag_values=FLAGS)
flags.DEFINE_string("url", None, "Compare replies of a server over HTTP instead.", flag_values=FLAGS)
flags.DEFINE_string("api_key", None, "With --url: the key that requests carry.", flag_values=FLAGS)
flags.DEFINE_bool("controls", False, "Show that deliberately wrong programs are found out.", flag_values=FLAGS)
flags.DEFINE_string("json", None, "File for everything that was found.", flag_values=FLAGS)
flags.DEFINE_string(
    "compilation_cache_dir",
    str(Path.home() / ".cache" / "fnx_jax"),
    "Where compiled programs are kept for the next run; empty keeps none.",
    flag_values=FLAGS,
)


def main(positional: list[str]) -> int:
    """Runs the proof that the flags ask for."""
    if positional:
        raise UsageError(f"unexpected {' '.join(positional)}; the checkpoint is given by --model")
    require_rich()
    _check_flags()
    begin_s = time.perf_counter()
    if FLAGS.controls:
        return _controls()
    proof = _http(begin_s) if FLAGS.url is not None else _library(begin_s)
    if isinstance(proof, int):
        return proof
    print_proof(proof)
    if FLAGS.json:
        write_json(proof, Path(FLAGS.json))
    return 0 if proof.green else EXIT_RED


def _check_flags() -> None:
    kinds = [name for name in ("quick", "full", "preset") if FLAGS[name].value]
    if len(kinds) > 1:
        raise UsageError(f"--{' and --'.join(kinds)} exclude each other")
    if FLAGS.url is not None and FLAGS.controls:
        raise UsageError("--controls run in this process, not at --url")
    if FLAGS.json and not Path(FLAGS.json).absolute().parent.is_dir():
        raise UsageError(f"--json: {Path(FLAGS.json).absolute().parent}: no such folder")


def device_counts(texts: list[str]) -> list[int]:
    """--tp as numbers, ascending, 1 always among them: the reference. Raises UsageError unless all are powers of two."""
    try:
        counts = sorted({int(text) for text in texts})
    except ValueError:
        raise UsageError(f"--tp={','.join(texts)}: numbers were wanted") from None
    if not counts or any(count < 1 or count & (count - 1) for count in counts):
        raise UsageError(f"--tp={','.join(texts)}: powers of two were wanted")
    return sorted({1, *counts})


def _library(begin_s: float) -> Proof | int:
    from experiments.prove.library import NotLoaded, prove_library

    size = "quick" if FLAGS.quick else "full" if FLAGS.full else FLAGS.preset or "pairs"
    try:
        return prove_library(
            FLAGS.model,
            FLAGS.dtype,
            size,
            device_counts(FLAGS.tp),
            FLAGS.seed,
            FLAGS.compilation_cache_dir,
            say,
            begin_s,
        )
    except NotLoaded as error:
        raise UsageError(f"--tp, --model: {error}") from error
    except MemoryError as error:
        print(f"does not fit: {error}", file=sys.stderr)
        return EXIT_DOES_NOT_FIT
    except RuntimeError as error:
        print(f"device: {error}", file=sys.stderr)
        return EXIT_DEVICE


def _http(begin_s: float) -> Proof:
    from experiments.prove.http import prove_http

    return prove_http(FLAGS.url, FLAGS.api_key, FLAGS.preset == "origin", FLAGS.seed, say, begin_s)


def _controls() -> int:
    from experiments.prove.show_controls import all_controls, show

    return 0 if show(all_controls(), print) else EXIT_RED


def say(what: str) -> None:
    """Tells on stderr what begins."""
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main, FLAGS)
