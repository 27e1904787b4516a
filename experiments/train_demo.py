"""Host side: trains the demo on the standard library's sources. Question: what can so small a model learn on two cores?

    python -m experiments.train_demo --work .cache/train

Read next: train/run.py.
"""

# Training promises no bits across programs, so it runs without serving's backend flags, which cost it half its speed:
# a backend that is up before fnx_jax is imported never sees them.
import jax

jax.devices()

import dataclasses  # noqa: E402
import json  # noqa: E402
from pathlib import Path  # noqa: E402

from absl import app, flags  # noqa: E402

from experiments.train import corpus, lesson, run  # noqa: E402

_WORK = flags.DEFINE_string("work", ".cache/train", "folder of checkpoints and logs; an interrupted run goes on there")
_PLAN = {
    field.name: flags.DEFINE_float(field.name, field.default, f"see train/run.py: Plan.{field.name}")
    if isinstance(field.default, float)
    else flags.DEFINE_integer(field.name, field.default, f"see train/run.py: Plan.{field.name}")
    for field in dataclasses.fields(run.Plan)
}


def main(_: list[str]) -> None:
    plan = run.Plan(**{name: flag.value for name, flag in _PLAN.items()})
    work = Path(_WORK.value)
    read = lesson.prepare(work, corpus.library(), lesson.SIZES, plan.seed)
    print(f"{len(read.train):,} tokens to learn from, {len(read.held_out):,} held out", flush=True)
    run.train(read, plan, work, lambda line: print(json.dumps(line), flush=True))


if __name__ == "__main__":
    app.run(main)
