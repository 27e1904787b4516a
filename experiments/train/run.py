"""Host side: the training itself: two phases, each resumed from its newest checkpoint, one line a report.

Where a phase is cut changes nothing: a step depends on the state it starts from and its number. The rate is level until
the cooldown begins, so a phase may be resumed with another number of steps as long as that has not begun.
Read next: export.py.
"""

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import jax
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from experiments.train.batches import Batches, NgramHash, ngram_hash
from experiments.train.lesson import Lesson
from experiments.train.losses import Batch, Learner
from experiments.train.optimiser import Pace
from experiments.train.start import first_params, first_table
from experiments.train.steps import Parts, Training, begin, draft_step, network_step, token_parts
from fnx_jax.families.flash_next.params import ModelParams

NETWORK, DRAFT = "network", "draft"


@dataclass(frozen=True)
class Plan:
    """How to train. rows, length: windows a batch and tokens a window. depths: of the chain that the draft head learns.

    cooldown: share of a phase's steps at its end in which the rate goes down to nothing. report_steps: between lines;
    every tenth measures the held-out loss too. save_s: seconds between checkpoints.
    """

    seed: int = 1
    rows: int = 8
    length: int = 256
    steps: int = 4000
    draft_steps: int = 1000
    depths: int = 3
    rate: float = 3e-3
    warmup: int = 100
    cooldown: float = 0.3
    report_steps: int = 25
    save_s: float = 240.0
    held_out_batches: int = 8


@dataclass(frozen=True)
class Trained:
    """What came out: params with the draft head, without line maps, and the n-gram table; float32."""

    params: ModelParams
    table: jax.Array


def train(lesson: Lesson, plan: Plan, folder: Path, report: Callable[[dict], None] = lambda line: None) -> Trained:
    """Trains the network, then its draft head; resumes what lies in the folder.

    Args: report: told every line that is added to the folder's `NAME.jsonl`.
    Raises: ValueError where a checkpoint lies beyond the plan; FloatingPointError where a loss is not finite.
    """
    hash_ = ngram_hash(lesson.config)
    params, batches = first_params(lesson.config, plan.seed), batches_of(lesson.train, hash_, plan)
    learner = Learner(dataclasses.replace(params, mtp=None), first_table(hash_.rows, lesson.config, plan.seed))
    pace = Pace(plan.rate, plan.steps, plan.warmup, plan.cooldown)
    held_out = held_out_loss(lesson, hash_, plan)
    step = partial(network_step, config=lesson.config, pace=pace)
    phase = _Phase(folder, NETWORK, plan, plan.steps, report)
    learner = phase.run(begin(learner, pace), step, batches, held_out)
    pace = dataclasses.replace(pace, steps=plan.draft_steps)
    step = partial(draft_step, fixed=learner, config=lesson.config, pace=pace, depths=plan.depths)
    phase = _Phase(folder, DRAFT, plan, plan.draft_steps, report)
    mtp = phase.run(begin(params.mtp, pace), step, batches, None)
    return Trained(dataclasses.replace(learner.params, mtp=mtp), learner.table)


def batches_of(stream: np.ndarray, hash_: NgramHash, plan: Plan) -> Batches:
    """The plan's batches of a stream. Raises ValueError where it is too short for one."""
    batches = Batches(stream, hash_, plan.rows, plan.length, plan.seed)
    if batches.steps_per_epoch < 1:
        raise ValueError(f"train: a stream of {len(stream)} tokens holds no batch of {plan.rows} x {plan.length}")
    return batches


def held_out_loss(lesson: Lesson, hash_: NgramHash, plan: Plan) -> Callable[[Learner], float]:
    """The mean loss of windows spread evenly over the held-out stream."""
    batches = Batches(lesson.held_out, hash_, plan.rows, plan.length, plan.seed)
    last = len(lesson.held_out) - plan.length - 1
    first = np.linspace(0, last, plan.held_out_batches * plan.rows).astype(np.int64).reshape(-1, plan.rows)

    def loss(learner: Learner) -> float:
        return float(np.mean([token_parts(learner, batches.at(places), lesson.config)["loss"] for places in first]))

    return loss


Step = Callable[[Training, Batch], tuple[Training, Parts]]
"""The buffers of its first argument are given up."""


class _Phase:
    """One phase: its checkpoints, its log, its loop."""

    def __init__(self, folder: Path, name: str, plan: Plan, steps: int, report: Callable[[dict], None]):
        self._plan, self._steps, self._report = plan, steps, report
        self._name, self._log = name, folder / f"{name}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager((folder / name).absolute(), options=options)

    def run(
        self, training: Training, step: Step, batches: Batches, held_out: Callable[[PyTree], float] | None
    ) -> PyTree:
        training = self._resume(training)
        done, saved_s = int(training.step), time.monotonic()
        started, first, recent = time.monotonic(), done, []
        while done < self._steps:
            training, parts = step(training, batches.batch(done))
            recent.append(parts)
            done += 1
            if done % self._plan.report_steps == 0 or done == self._steps:
                rate = (done - first) * batches.rows * batches.length / (time.monotonic() - started)
                self._tell(done, recent, rate, training, held_out)
                recent = []
            if time.monotonic() - saved_s > self._plan.save_s or done == self._steps:
                self._manager.save(done, args=ocp.args.StandardSave(training), force=True)
                saved_s = time.monotonic()
        self._manager.close()
        return training.learner

    def _resume(self, training: Training) -> Training:
        newest = self._manager.latest_step()
        lines = self._log.read_text("utf-8").splitlines() if self._log.exists() else []
        kept = [line for line in lines if json.loads(line)["step"] <= (newest or 0)]
        self._log.write_text("".join(line + "\n" for line in kept), "utf-8")
        if newest is None:
            return training
        if newest > self._steps:
            raise ValueError(f"train: {self._manager.directory} holds step {newest}, but the plan has {self._steps}")
        return cast(Training, self._manager.restore(newest, args=ocp.args.StandardRestore(training)))

    def _tell(self, done: int, recent: list[dict], rate: float, training: Training, held_out: Callable | None) -> None:
        names = [name for name, value in recent[0].items() if np.ndim(value) == 0]
        means = {name: round(float(np.mean([parts[name] for parts in recent])), 4) for name in names}
        if not np.isfinite(means["loss"]):
            raise FloatingPointError(f"train: {self._name}: the loss is not finite before step {done}")
        line = {"phase": self._name, "step": done, **means, "rate_tok_s": round(rate)}
        if held_out and (done % (10 * self._plan.report_steps) == 0 or done == self._steps):
            line["held_out"] = round(held_out(training.learner), 4)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        self._report(line)
