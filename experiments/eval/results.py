"""Host side: what evaluations share: a model as a command's flags ask for it, and a line of JSON a result."""

import json
from pathlib import Path
from typing import Any

from checkpoints.commands import UsageError
from fnx_jax.loading import load
from fnx_jax.model import Model


def load_model(path: str, devices: int, dtype: str | None, lanes: int, context: int) -> Model:
    """Loads a checkpoint for scoring; raises UsageError for arguments that make no sense, CheckpointError as `load`."""
    try:
        return load(path, devices=devices, dtype=dtype, lanes=lanes, context=context, draft_head=False)
    except ValueError as error:
        raise UsageError(str(error)) from error


def append_result(file: Path, name: str, asked: dict, model: Model, found: dict[str, Any]) -> None:
    """Adds one line: the evaluation, what it was asked, checkpoint and fingerprint, and what it found."""
    line = {
        "evaluation": name,
        "asked": asked,
        "checkpoint": model.checkpoint_digest,
        "fingerprint": str(model.fingerprint),
        "found": found,
    }
    with open(file, "a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
