"""Host side: the training itself: two phases, each resumed from its newest checkpoint, one line a report.

Where a phase is cut changes nothing: a step depends on the state it starts from and its number. The rate is level until
the cooldown begins, so a phase may be resumed with another number of steps as long as that has not begun.
Read next: phase.py (one phase), export.py.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import numpy as np

from experiments.train.batches import Batches, NgramHash, ngram_hash
from experiments.train.errors import TrainingError
from experiments.train.folders import alone, make_folder
from experiments.train.lesson import Lesson
from experiments.train.losses import Learner
from experiments.train.optimiser import Pace
from experiments.train.phase import Phase
from experiments.train.start import first_params, first_table
from experiments.train.steps import begin, draft_step, network_step, token_parts
from fnx_jax.families.flash_next.params import ModelParams

NETWORK, DRAFT = "network", "draft"


@dataclass(frozen=True)
class Plan:
    """How to train. rows, length: windows a batch and tokens a window. depths: of the chain that the draft head learns.

    rate, warmup, cooldown: see `Pace`. report_steps: between lines of the log. save_s: seconds between checkpoints.
    held_out_batches: behind each held-out loss. Raises TrainingError, naming the field, where one makes no sense.
    """

    seed: int = 1
    rows: int = 8
    length: int = 256
    steps: int = 2680
    draft_steps: int = 800
    depths: int = 3
    rate: float = 3e-3
    warmup: int = 100
    cooldown: float = 0.3
    report_steps: int = 25
    save_s: float = 240.0
    held_out_batches: int = 8

    def __post_init__(self) -> None:
        for name in ("rows", "length", "steps", "draft_steps", "depths", "warmup", "report_steps", "held_out_batches"):
            if getattr(self, name) < 1:
                raise TrainingError(f"Plan: {name} {getattr(self, name)}, at least 1 was wanted")
        if self.seed < 0 or self.save_s < 0 or not self.rate > 0 or not 0 <= self.cooldown <= 1:
            raise TrainingError(
                f"Plan: seed {self.seed}, rate {self.rate}, cooldown {self.cooldown}, save_s {self.save_s}; a seed "
                "from 0, a positive rate, a share and seconds were wanted"
            )
        if self.depths >= self.length:
            raise TrainingError(f"Plan: depths {self.depths} in windows of length {self.length}: no draft has a target")
        for name in ("steps", "draft_steps"):
            pace = self.pace(getattr(self, name))
            if pace.level_steps + pace.cooldown_steps > pace.steps:
                raise TrainingError(
                    f"Plan: {name} {pace.steps} hold no warmup of {pace.warmup} and cooldown of {pace.cooldown_steps}"
                )

    def pace(self, steps: int) -> Pace:
        """Of a phase of so many steps."""
        return Pace(self.rate, steps, self.warmup, self.cooldown)


@dataclass(frozen=True)
class Trained:
    """What came out: params with the draft head, without line maps, and the n-gram table; float32."""

    params: ModelParams
    table: jax.Array


def train(lesson: Lesson, plan: Plan, folder: Path, report: Callable[[dict], None] = lambda line: None) -> Trained:
    """Trains the network, then its draft head; resumes what lies in the folder.

    Args: report: told every line that is added to the folder's `NAME.jsonl`.
    Raises: TrainingError where a stream is too short, the folder is a file, another process is at work there, or it
      holds checkpoints of another plan; FloatingPointError where a loss is not finite.
    """
    hash_ = ngram_hash(lesson.config)
    batches, held_out = batches_of(lesson.train, hash_, plan), held_out_loss(lesson, hash_, plan)
    make_folder(folder)
    with alone(folder):
        params = first_params(lesson.config, plan.seed)
        learner = Learner(dataclasses.replace(params, mtp=None), first_table(hash_.rows, lesson.config, plan.seed))
        pace, settings = plan.pace(plan.steps), {"seed": plan.seed, "rows": plan.rows, "length": plan.length}
        step = partial(network_step, config=lesson.config, pace=pace)
        phase = Phase(folder, NETWORK, pace, settings, plan.report_steps, plan.save_s, report)
        learner = phase.run(begin(learner, pace), step, batches, held_out)
        pace, settings = plan.pace(plan.draft_steps), settings | {"depths": plan.depths}
        step = partial(draft_step, fixed=learner, config=lesson.config, pace=pace, depths=plan.depths)
        phase = Phase(folder, DRAFT, pace, settings, plan.report_steps, plan.save_s, report)
        mtp = phase.run(begin(params.mtp, pace), step, batches, None)
    return Trained(dataclasses.replace(learner.params, mtp=mtp), learner.table)


def batches_of(stream: np.ndarray, hash_: NgramHash, plan: Plan) -> Batches:
    """The plan's batches of a stream. Raises TrainingError where it is too short for one."""
    batches = Batches(stream, hash_, plan.rows, plan.length, plan.seed)
    if batches.steps_per_epoch < 1:
        raise TrainingError(f"train: a stream of {len(stream)} tokens holds no batch of {plan.rows} x {plan.length}")
    return batches


def held_out_loss(lesson: Lesson, hash_: NgramHash, plan: Plan) -> Callable[[Learner], float]:
    """The mean loss of windows spread evenly over the held-out stream. Raises TrainingError where it holds none."""
    batches = Batches(lesson.held_out, hash_, plan.rows, plan.length, plan.seed)
    last = len(lesson.held_out) - plan.length - 1
    if last < 0:
        raise TrainingError(
            f"train: {len(lesson.held_out)} held-out tokens hold no window of {plan.length} and a target"
        )
    first = np.linspace(0, last, plan.held_out_batches * plan.rows).astype(np.int64).reshape(-1, plan.rows)

    def loss(learner: Learner) -> float:
        return float(np.mean([token_parts(learner, batches.at(places), lesson.config)["loss"] for places in first]))

    return loss
