"""Host side: writes the trained demo's folder and measures every figure of its card.

Question: how much of what the demo learnt survives in EXL3, and do its drafts pay?

    python -m experiments.demo_figures --work=.cache/train --out=checkpoints/demo

It takes what `experiments.train_demo` left in the work folder. Packs and figures are kept there, in a folder of their
own for each trained checkpoint, so that a run that is stopped goes on.
Read next: train/figures.py.
"""

import hashlib
import json
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from absl import flags

import fnx_jax
from checkpoints.commands import UsageError, run
from experiments.receipts import Origin, Receipt, make_receipt, note_origin, write_receipt
from experiments.train import card, corpus, export, lesson, packs
from experiments.train.curve import curve
from experiments.train.errors import TrainingError
from experiments.train.figures import Figures, Sample
from experiments.train.folders import alone, make_folder

FLAGS = flags.FlagValues()
flags.DEFINE_string("work", ".cache/train", "Folder of the training; packs to compare go there too.", flag_values=FLAGS)
flags.DEFINE_string("out", None, "Folder of the pack and its card.", flag_values=FLAGS, required=True)
flags.DEFINE_integer("seed", 1, "That of the training.", flag_values=FLAGS)
flags.DEFINE_bool("receipt", False, "Write a receipt of the figures.", flag_values=FLAGS)
PLAIN, CARD, PICTURE = "plain", "README.md", "losses.svg"
"""Of the work folder: the trained checkpoint in bf16. Of the result: its card, and the losses while training."""


def write(work: Path, out: Path, read: lesson.Lesson, sample: Sample, seed: int) -> dict[str, Any]:
    """Measures what is not known yet, then writes the folder whole, in place of what an earlier call left there.

    Returns: the figures.
    Raises: TrainingError, before anything is measured, where the training is not finished or `out` has other files.
    """
    plain = work / PLAIN
    folder = work / f"figures_{digest(plain, sample, seed)}"
    make_folder(folder)
    with alone(folder):
        figures = Figures(read, plain, folder, sample, seed)
        files = sorted(figures.pack(packs.DEMO).iterdir())
        refuse_others(out, {CARD, PICTURE, *(file.name for file in files)})
        found = figures.measure()
        texts = {CARD: card.model_card(found), PICTURE: picture(work, found["trigram"])}
        replace_folder(out, files, texts)
    return found


def digest(plain: Path, sample: Sample, seed: int) -> str:
    """Names all that figures depend on: another checkpoint, sample or recipe gets others.

    Raises: TrainingError where the training has not been finished.
    """
    weights = plain / export.MODEL_FILE
    if not weights.is_file():
        raise TrainingError(f"{weights}: no such file; experiments.train_demo writes it when the training is finished")
    parts = (weights.read_bytes(), packs.RECIPE.read_bytes(), f"{sample} {seed}".encode())
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:12]


def refuse_others(out: Path, names: Collection[str]) -> None:
    """Raises TrainingError where a path is no folder, or holds files of other names."""
    if out.exists() and not out.is_dir():
        raise TrainingError(f"{out}: a folder was wanted")
    others = sorted({file.name for file in out.iterdir()}.difference(names)) if out.exists() else []
    if others:
        raise TrainingError(f"{out}: holds {', '.join(others)}, which this folder has not; remove it or name another")


def replace_folder(out: Path, files: Iterable[Path], texts: Mapping[str, str]) -> None:
    """Copies files and writes texts beside them; the folder appears whole, in the place of an older one."""
    whole = out.with_name(f"{out.name}.unfinished")
    shutil.rmtree(whole, ignore_errors=True)
    whole.mkdir(parents=True)
    for file in files:
        shutil.copyfile(file, whole / file.name)
    for name, text in texts.items():
        (whole / name).write_text(text, "utf-8")
    if out.exists():
        shutil.rmtree(out)
    whole.rename(out)


def picture(work: Path, trigram: float) -> str:
    """The losses of the network's phase, as SVG."""
    lines = [json.loads(line) for line in (work / "network.jsonl").read_text("utf-8").splitlines()]
    learnt = [(line["step"], line["loss"]) for line in lines]
    held_out = [(line["step"], line["held_out"]) for line in lines if "held_out" in line]
    levels = {"3-gram, held out": trigram}
    return curve({"training": smooth(learnt), "held out": held_out}, levels, "step", "nats a token")


def smooth(points: Iterable[tuple[float, float]], keep: float = 0.7) -> list[tuple[float, float]]:
    """Each value mixed with those before it."""
    mixed, out = None, []
    for x, y in points:
        mixed = y if mixed is None else keep * mixed + (1 - keep) * y
        out.append((x, mixed))
    return out


def main(positional: list[str]) -> None:
    """Measures and writes."""
    if positional:
        raise UsageError(f"unexpected {' '.join(positional)}")
    origin = note_origin() if FLAGS.receipt else None
    work, out = Path(FLAGS.work), Path(FLAGS.out)
    try:
        digest(work / PLAIN, Sample(), FLAGS.seed)
        read = lesson.prepare(work, corpus.library(), lesson.SIZES, FLAGS.seed)
        figures = write(work, out, read, Sample(), FLAGS.seed)
    except TrainingError as error:
        raise UsageError(str(error)) from error
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size:>10,} {file.name}")
    if origin is not None:
        print(f"receipt: {write_receipt(demo_receipt(origin, out, figures))}")


def demo_receipt(origin: Origin, out: Path, figures: Mapping[str, Any]) -> Receipt:
    """The figures, and what they were measured on. Raises ReceiptError."""
    model = fnx_jax.load(out, lanes=1, context=512)
    sizes = {"bytes": sum(file.stat().st_size for file in out.iterdir())}
    fingerprint, hashes = asdict(model.fingerprint), {"checkpoint": model.checkpoint_digest}
    device = model.fingerprint.device
    return make_receipt(origin, "demo", device, {**figures, **sizes}, fingerprint=fingerprint, hashes=hashes)


if __name__ == "__main__":
    run(main, FLAGS)
