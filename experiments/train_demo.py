"""Host side: trains the demo on the standard library's sources. Question: what can so small a model learn on two cores?

    python -m experiments.train_demo --work .cache/train

A run that was stopped goes on by the same command. Read next: train/run.py, then demo_figures.py, which measures and
packs.
"""

# Training promises no bits across programs, so it runs without serving's backend flags, which cost it half its speed:
# a backend that is up before fnx_jax is imported never sees them.
import jax

jax.devices()

import dataclasses  # noqa: E402
import json  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from absl import flags, logging  # noqa: E402

from checkpoints.commands import UsageError, run  # noqa: E402
from experiments.train import corpus, export, lesson  # noqa: E402
from experiments.train.errors import TrainingError  # noqa: E402
from experiments.train.run import Plan, train  # noqa: E402

FLAGS = flags.FlagValues()
flags.DEFINE_string("work", ".cache/train", "Folder of checkpoints and logs.", flag_values=FLAGS)
_DEFAULTS: dict[str, Any] = dataclasses.asdict(Plan())
for _name, _default in _DEFAULTS.items():
    _define: Any = flags.DEFINE_float if isinstance(_default, float) else flags.DEFINE_integer
    _define(_name, _default, f"See Plan.{_name} in train/run.py.", flag_values=FLAGS)


def main(positional: list[str]) -> None:
    """Trains, and writes the checkpoint in bf16."""
    if positional:
        raise UsageError(f"unexpected {' '.join(positional)}")
    logging.set_verbosity(logging.WARNING)  # the checkpointing library tells every save
    work = Path(FLAGS.work)
    try:
        values: dict[str, Any] = {name: FLAGS[name].value for name in _DEFAULTS}
        plan = Plan(**values)
        read = lesson.prepare(work, corpus.library(), lesson.SIZES, plan.seed)
        print(f"{len(read.train):,} tokens to learn from, {len(read.held_out):,} held out", flush=True)
        trained = train(read, plan, work, lambda line: print(json.dumps(line), flush=True))
    except TrainingError as error:
        raise UsageError(str(error)) from error
    export.write_checkpoint(work / "plain", trained, read, lesson.SIZES)
    print(f"{work / 'plain'}: the checkpoint in bf16; next: python -m experiments.demo_figures --work={work} --out=OUT")


if __name__ == "__main__":
    run(main, FLAGS)
