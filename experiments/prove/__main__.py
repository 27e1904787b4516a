"""Proves that tokens depend on checkpoint, prompt, parameters and seed alone: python -m experiments.prove

Serves the same requests alone, in company, in other chunks, with drafts, on several devices, and compares the logits of
every emitted position bit for bit. Exit codes: 0 all equal, 1 not, 2 usage, 3 checkpoint, 4 does not fit, 5 device.
"""

import sys
import time
from pathlib import Path

from absl import flags

from checkpoints.commands import DEMO, UsageError, run
from experiments.prove.report import Proof, print_proof, proof_receipt, require_rich, write_json
from experiments.receipts import note_origin, write_receipt

EXIT_RED, EXIT_DOES_NOT_FIT, EXIT_DEVICE = 1, 4, 5

FLAGS = flags.FlagValues()
flags.DEFINE_string("model", str(DEMO), "Folder of the checkpoint.", flag_values=FLAGS)
flags.DEFINE_enum("dtype", None, ["float32"], "float32 keeps operands and caches float32.", flag_values=FLAGS)
flags.DEFINE_list("tp", None, "Numbers of devices; by default those of 1, 2 and 4 that there are.", flag_values=FLAGS)
flags.DEFINE_integer("seed", 0, "Seed of prompts and draws.", 0, 2**31 - 1, flag_values=FLAGS)
flags.DEFINE_bool("quick", False, "Fewer and shorter cells.", flag_values=FLAGS)
flags.DEFINE_bool("full", False, "Every combination instead of every pair.", flag_values=FLAGS)
flags.DEFINE_enum("preset", None, ["origin"], "origin: long prompts, long replies, 1 and 4 streams.", flag_values=FLAGS)
flags.DEFINE_string("url", None, "Compare replies of a server over HTTP instead.", flag_values=FLAGS)
flags.DEFINE_string("api_key", None, "With --url: the key that requests carry.", flag_values=FLAGS)
flags.DEFINE_bool("controls", False, "Show that deliberately wrong programs are found out.", flag_values=FLAGS)
flags.DEFINE_string("json", None, "File for everything that was found.", flag_values=FLAGS)
flags.DEFINE_bool("receipt", False, "Write a receipt into experiments/results.", flag_values=FLAGS)
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
    origin = note_origin() if FLAGS.receipt else None
    begin_s = time.perf_counter()
    if FLAGS.controls:
        return _controls()
    proof = _http(begin_s) if FLAGS.url is not None else _library(begin_s)
    if isinstance(proof, int):
        return proof
    print_proof(proof)
    if FLAGS.json:
        write_json(proof, Path(FLAGS.json))
    if origin is not None:
        print(f"receipt: {write_receipt(proof_receipt(origin, proof, _device()))}")
    return 0 if proof.green else EXIT_RED


def _check_flags() -> None:
    kinds = [name for name in ("quick", "full", "preset") if FLAGS[name].value]
    if len(kinds) > 1:
        raise UsageError(f"--{' and --'.join(kinds)} exclude each other")
    if FLAGS.url is not None and FLAGS.controls:
        raise UsageError("--controls run in this process, not at --url")
    if FLAGS.receipt and (FLAGS.url is not None or FLAGS.controls):
        raise UsageError("--receipt is for runs of a model in this process")
    if FLAGS.json and not Path(FLAGS.json).absolute().parent.is_dir():
        raise UsageError(f"--json: {Path(FLAGS.json).absolute().parent}: no such folder")


def _device() -> str:
    import jax

    return jax.devices()[0].device_kind


def device_counts(texts: list[str] | None) -> list[int] | None:
    """--tp as numbers, None for none: ascending, and always with 1, the reference.

    Raises: UsageError unless all are powers of two.
    """
    if texts is None:
        return None
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
    from experiments.prove.library import DEVICE_COUNTS, prepare_jax
    from experiments.prove.show_controls import all_controls, show

    controls = all_controls()
    prepare_jax(max(device_counts(FLAGS.tp) or DEVICE_COUNTS), FLAGS.compilation_cache_dir)
    return 0 if show(controls, lambda line: print(line, flush=True)) else EXIT_RED


def say(what: str) -> None:
    """Tells on stderr what begins."""
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main, FLAGS)
