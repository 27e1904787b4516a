"""Host side: one phase of training: its checkpoints, its log, its loop.

A phase may be killed anywhere: the next run begins at the newest whole checkpoint and drops the lines of the log that
lie beyond it. Read next: run.py.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from experiments.train.batches import Batches
from experiments.train.errors import TrainingError
from experiments.train.folders import write_whole
from experiments.train.losses import Batch
from experiments.train.optimiser import Pace
from experiments.train.steps import Parts, Training

Step = Callable[[Training, Batch], tuple[Training, Parts]]
"""The buffers of its first argument are given up."""
HELD_OUT_OF = 10
"""One line of the log in so many measures the held-out loss, and so does the last."""


@dataclass(frozen=True)
class Phase:
    """name: of its checkpoints' folder, its log NAME.jsonl and its settings NAME.json, below `folder`.

    settings: what decides its bits besides its pace. report_steps, save_s: as in `Plan`. report: told every line.
    """

    folder: Path
    name: str
    pace: Pace
    settings: Mapping[str, int | float]
    report_steps: int
    save_s: float
    report: Callable[[dict], None]

    def run(
        self, training: Training, step: Step, batches: Batches, held_out: Callable[[PyTree], float] | None
    ) -> PyTree:
        """Trains from the newest checkpoint, or from `training`, to the last step; returns the learner."""
        options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True, enable_async_checkpointing=False)
        with ocp.CheckpointManager((self.folder / self.name).absolute(), options=options) as manager:
            newest = manager.latest_step()
            self._settle(newest)
            if newest is not None:
                training = cast(Training, manager.restore(newest, args=ocp.args.StandardRestore(training)))
            return self._train(training, step, batches, held_out, manager)

    def _train(
        self,
        training: Training,
        step: Step,
        batches: Batches,
        held_out: Callable[[PyTree], float] | None,
        manager: ocp.CheckpointManager,
    ) -> PyTree:
        done, recent = int(training.step), []
        saved_s = told_s = time.monotonic()
        while done < self.pace.steps:
            training, parts = step(training, batches.batch(done))
            recent.append(parts)
            done += 1
            last = done == self.pace.steps
            if done % self.report_steps == 0 or last:
                means = self._means(recent, done)
                rate = len(recent) * batches.rows * batches.length / (time.monotonic() - told_s)
                line = {"phase": self.name, "step": done, **means, "rate_tok_s": round(rate)}
                if held_out and (done % (HELD_OUT_OF * self.report_steps) == 0 or last):
                    line["held_out"] = round(held_out(training.learner), 4)
                self._tell(line)
                recent, told_s = [], time.monotonic()
            if last or time.monotonic() - saved_s > self.save_s:
                self._means(recent, done)
                manager.save(done, args=ocp.args.StandardSave(training), force=True)
                saved_s = time.monotonic()
        return training.learner

    def _settle(self, newest: int | None) -> None:
        """Holds the settings against those of the newest checkpoint, notes them, and cuts the log behind it."""
        file, log = self.folder / f"{self.name}.json", self.folder / f"{self.name}.jsonl"
        settings = {**asdict(self.pace), **self.settings}
        if newest is not None:
            begun = json.loads(file.read_text("utf-8"))
            differing = [key for key in settings if key != "steps" and begun.get(key) != settings[key]]
            if differing:
                key = differing[0]
                raise TrainingError(f"train: {file}: begun with {key} {begun.get(key)}, now {settings[key]}")
            if begun["steps"] != self.pace.steps and newest > min(begun["level_steps"], self.pace.level_steps):
                raise TrainingError(
                    f"train: {self.folder / self.name}: at step {newest} of {begun['steps']}, too late to plan "
                    f"{self.pace.steps}: the rate has begun to go down in one of them"
                )
        lines = log.read_text("utf-8").split("\n")[:-1] if log.exists() else []  # what a kill cut short has no end
        kept = [line for line in lines if json.loads(line)["step"] <= (newest or 0)]
        write_whole(log, "".join(line + "\n" for line in kept))
        write_whole(file, json.dumps(settings | {"level_steps": self.pace.level_steps}) + "\n")

    def _means(self, recent: list[Parts], done: int) -> dict[str, float]:
        """Of the scalars of some steps. Raises FloatingPointError where one is not finite, so that none is saved."""
        names = [name for name, value in recent[0].items() if np.ndim(value) == 0] if recent else []
        means = {name: round(float(np.mean([parts[name] for parts in recent])), 4) for name in names}
        for name, mean in means.items():
            if not np.isfinite(mean):
                raise FloatingPointError(f"train: {self.name}: the mean {name} before step {done} is {mean}")
        return means

    def _tell(self, line: dict) -> None:
        with (self.folder / f"{self.name}.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        self.report(line)
