"""Host side: trains the demo on the standard library's sources. Question: what can so small a model learn on two cores?

    python -m experiments.train_demo --work .cache/train

Read next: train/run.py, then demo_figures.py, which measures and packs.
"""

# Training promises no bits across programs, so it runs without serving's backend flags, which cost it half its speed:
# a backend that is up before fnx_jax is imported never sees them.
import jax

jax.devices()

import dataclasses  # noqa: E402
import json  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from absl import app, flags, logging  # noqa: E402

from experiments.train import corpus, export, lesson, run  # noqa: E402

_WORK = flags.DEFINE_string("work", ".cache/train", "folder of checkpoints and logs; an interrupted run goes on there")
_PLAN: dict[str, Any] = {
    name: flags.DEFINE_float(name, default, f"see train/run.py: Plan.{name}")
    if isinstance(default, float)
    else flags.DEFINE_integer(name, default, f"see train/run.py: Plan.{name}")
    for name, default in dataclasses.asdict(run.Plan()).items()
}


def main(_: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    plan = run.Plan(**{name: flag.value for name, flag in _PLAN.items()})
    work = Path(_WORK.value)
    read = lesson.prepare(work, corpus.library(), lesson.SIZES, plan.seed)
    print(f"{len(read.train):,} tokens to learn from, {len(read.held_out):,} held out", flush=True)
    trained = run.train(read, plan, work, lambda line: print(json.dumps(line), flush=True))
    export.write_checkpoint(work / "plain", trained, read, lesson.SIZES)
    print(f"{work / 'plain'}: the checkpoint in bf16; next: python -m experiments.demo_figures --work={work} --out=OUT")


if __name__ == "__main__":
    app.run(main)
