"""Host side: writes the trained demo's folder and measures every figure of its card.

Question: how much of what the demo learnt survives in EXL3, and do its drafts pay?

    python -m experiments.demo_figures --work=.cache/train --out=checkpoints/demo

It takes what `experiments.train_demo` left in the work folder; figures known from an earlier run are kept there.
Read next: train/figures.py.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from absl import flags

from checkpoints.commands import run
from experiments.train import card, corpus, lesson, packs
from experiments.train.curve import curve
from experiments.train.figures import Figures, Sample

FLAGS = flags.FlagValues()
flags.DEFINE_string("work", ".cache/train", "Folder of the training; packs to compare go there too.", flag_values=FLAGS)
flags.DEFINE_string("out", None, "Folder of the pack and its card.", flag_values=FLAGS, required=True)
flags.DEFINE_integer("seed", 1, "That of the training.", flag_values=FLAGS)
PLAIN, PICTURE = "plain", "losses.svg"
"""Of the work folder: the trained checkpoint in bf16. Of the result: the losses while training."""


def write(work: Path, out: Path, read: lesson.Lesson, sample: Sample, seed: int) -> None:
    """Measures what is not known yet, then writes the folder. Raises ValueError where it exists with other files."""
    figures = Figures(read, work / PLAIN, work, sample, seed).measure()
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted((work / packs.DEMO.name).iterdir()):
        shutil.copyfile(file, out / file.name)
    (out / "README.md").write_text(card.model_card(figures, sample.calibration), "utf-8")
    (out / PICTURE).write_text(picture(work, figures["trigram"]), "utf-8")


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


def main(_: list[str]) -> None:
    work, out = Path(FLAGS.work), Path(FLAGS.out)
    read = lesson.prepare(work, corpus.library(), lesson.SIZES, FLAGS.seed)
    write(work, out, read, Sample(), FLAGS.seed)
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size:>10,} {file.name}")


if __name__ == "__main__":
    run(main, FLAGS)
