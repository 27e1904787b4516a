"""Host side: rows of token ids from texts, for calibration and evaluation."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from checkpoints.errors import CheckpointError


def read_token_rows(
    files: Sequence[str | Path], checkpoint: str | Path, rows: int, columns: int, vocabulary: int
) -> Int[np.ndarray, "B T"]:
    """Cuts texts, one after another, into rows of equal length; what does not fill a row is left out.

    Args:
      files: UTF-8 texts, or `.npy` arrays of ids. checkpoint: the folder whose tokenizer.json reads texts. rows: at
        most, 0 for all. columns: tokens of a row. vocabulary: ids lie below.
    Returns: int32, at least one row.
    Raises: ValueError where a file cannot be read, an id is outside the vocabulary, or the texts fill no row.
      CheckpointError where a text needs a tokenizer and the folder has none.
    """
    if rows < 0 or columns < 1:
        raise ValueError(f"{rows} rows of {columns} tokens: at least 0 and 1 were wanted")
    pieces, wanted = [], rows * columns
    for file in files:
        pieces.append(_ids(Path(file), Path(checkpoint)))
        if wanted and sum(map(len, pieces)) >= wanted:
            break
    ids = np.concatenate(pieces) if pieces else np.empty(0, np.int32)
    bad = ids[(ids < 0) | (ids >= vocabulary)]
    if bad.size:
        raise ValueError(f"token id {int(bad[0])} is outside the vocabulary of {vocabulary}")
    count = len(ids) // columns
    count = min(count, rows) if rows else count
    if not count:
        raise ValueError(f"{len(ids)} tokens in all, which fill no row of {columns}")
    return ids[: count * columns].reshape(count, columns).astype(np.int32)


def _ids(file: Path, checkpoint: Path) -> np.ndarray:
    try:
        if file.suffix == ".npy":
            ids = np.load(file).reshape(-1)
            if ids.dtype.kind not in "iu":
                raise ValueError(f"{file}: {ids.dtype} values, token ids were wanted")
            return ids
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: cannot read: {error}") from error
    tokenizer = checkpoint / "tokenizer.json"
    if not tokenizer.is_file():
        raise CheckpointError(f"{tokenizer}: missing, and texts are read with it")
    from tokenizers import Tokenizer

    return np.array(Tokenizer.from_file(str(tokenizer)).encode(text, add_special_tokens=False).ids, np.int64)
