"""Host side: where kept states go as files, and what tells those of one server from those of another.

A state may be resumed by whoever would have made the same bytes: the same program on the same kind of devices, laid out
alike, with the same weights. Read next: fnx_jax/engine/prompt_cache/disk.py.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from checkpoints.identity import folder_identity
from fnx_jax.engine.prompt_cache.disk import DiskChoice
from fnx_jax.serve.ranks.facts import program_digest

if TYPE_CHECKING:
    from fnx_jax.model import Model


def prepare_folder(folder: Path) -> Path:
    """Makes a folder that only its owner may enter, if it is not there, and tries to write in it. Raises OSError."""
    folder.mkdir(0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x")
        file.flush()
    return folder.resolve()


def disk_choice(folder: Path | None, budget_bytes: int, checkpoint: Path, model: "Model") -> DiskChoice | None:
    """The engine's choice of files for states of a model that was loaded from a folder; None without a place for them.

    Raises: OSError where the checkpoint's files cannot be read.
    """
    if folder is None or model.steps.kept is None:
        return None
    return DiskChoice(folder, budget_bytes, state_fingerprint(checkpoint, model))


def state_fingerprint(checkpoint: Path, model: "Model") -> str:
    """Returns sixteen hex digits of SHA-256 over all that the bytes of a kept state may depend on, but its tokens."""
    assert model.steps.kept is not None
    parts = {
        "program": program_digest(),
        "backend": model.fingerprint.digest(),
        "devices": model.devices,
        "checkpoint": [model.checkpoint_digest, folder_identity(checkpoint)],
        "page": model.steps.page,
        "state": model.steps.kept.layout(),
        "draft_head": model.steps.draft_depth > 0,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
