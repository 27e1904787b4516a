"""Host side: the check of a program's surroundings, in a process without the backend flags."""

import json
import os
import subprocess
import sys
from pathlib import Path

from experiments.prove.controls.control import Control, Outcome, without_plants
from experiments.prove.controls.surroundings import surroundings

ROOT = Path(__file__).parents[3]


def without_flags() -> Outcome:
    """The check's result there; the same check is green here, with the flags."""
    here = without_plants(surroundings)
    if here is not None:
        return Outcome(False, f"the check is not green with the flags: {here}")
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", "experiments.prove.controls.unflagged"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return Outcome(False, f"the process failed: {done.stderr.strip()[-300:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if not answer["missing"]:
        return Outcome(False, "the process had the flags")
    return Outcome(answer["found"] is not None, answer["found"] or "no difference")


CONTROLS: tuple[Control, ...] = (
    Control("without_the_flags", "3.0", "the backend is started without the package's flags", without_flags),
)
