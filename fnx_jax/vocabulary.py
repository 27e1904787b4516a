"""Host side: which ids have a token, and which of them end a reply, read from the files beside the weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from checkpoints.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any] | None:
    """Parses a JSON object, None where there is no such file. Raises CheckpointError naming a malformed one."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: an object was wanted, not {type(value).__name__}")
    return value


def ids_with_token(folder: Path, vocabulary: int) -> Bool[np.ndarray, " V"]:
    """Marks the ids that tokenizer.json knows; all of them where there is no tokenizer."""
    tokenizer = read_json(folder / "tokenizer.json")
    if tokenizer is None:
        return np.ones(vocabulary, bool)
    try:
        vocab = tokenizer["model"]["vocab"]
        ids = [*vocab.values(), *(token["id"] for token in tokenizer.get("added_tokens", ()))]
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / 'tokenizer.json'}: not a tokenizer with a vocabulary of ids") from error
    if not ids or max(ids) >= vocabulary:
        raise CheckpointError(
            f"{folder / 'tokenizer.json'}: ids up to {max(ids, default=-1)}, but the model has {vocabulary}"
        )
    valid = np.zeros(vocabulary, bool)
    valid[ids] = True
    return valid


def end_ids(folder: Path) -> tuple[int, ...]:
    """The ids that generation_config.json ends a reply with; none where it names none."""
    value = (read_json(folder / "generation_config.json") or {}).get("eos_token_id")
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
