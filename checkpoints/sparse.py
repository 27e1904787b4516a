"""Host side: writes safetensors files of any size whose tensors are holes, except for the few that have values.

A hole takes no space on disk and reads as zeros. Read next: skeleton.py.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from checkpoints.headers import DTYPES
from checkpoints.store import ALIGNMENT


@dataclass(frozen=True, slots=True)
class Outline:
    """One tensor to write. dtype: safetensors code. shape: () for a scalar. values: None for a hole."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the file."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def write_sparse(path: Path, outlines: Sequence[Outline], metadata: dict[str, str] | None = None) -> None:
    """Writes a new file: header, values, and a length.

    Tensors lie in the order of common writers, wide dtypes first, then by name: each is then aligned to its own
    elements, and the scalars that have values are neighbours.
    Raises: FileExistsError where the file exists; OSError where the file system has no room or no such sizes.
    """
    ordered = sorted(outlines, key=lambda outline: (-DTYPES[outline.dtype].itemsize, outline.name))
    header = _header(ordered, metadata or {})
    with open(path, "xb") as file:
        file.write(header)
        position, run_start, run = len(header), len(header), bytearray()
        for outline in ordered:
            if outline.values is None:
                _flush(file.fileno(), run, run_start)
                run_start = position + outline.nbytes
            else:
                run += outline.values.astype(DTYPES[outline.dtype]).tobytes()
            position += outline.nbytes
        _flush(file.fileno(), run, run_start)
        file.truncate(position)


def _header(ordered: Sequence[Outline], metadata: dict[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for outline in ordered:
        stop = offset + outline.nbytes
        entries[outline.name] = {"dtype": outline.dtype, "shape": outline.shape, "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _flush(descriptor: int, run: bytearray, start: int) -> None:
    """Writes neighbouring values at once and empties the run."""
    done = 0
    while done < len(run):
        done += os.pwrite(descriptor, memoryview(run)[done:], start + done)
    run.clear()
