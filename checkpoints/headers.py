"""Host side: the header of one safetensors file, read and checked before any tensor is. Read next: store.py.

A file is 8 bytes of little-endian header length, a JSON object, and the tensors back to back. Nothing here reads a
tensor, so sparse files of any size cost their header alone.
"""

import json
import math
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from checkpoints.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit; a larger length means that the file is something else."""

DTYPES: dict[str, np.dtype] = {
    code: np.dtype(dtype)
    for code, dtype in {
        "BOOL": np.bool_,
        "U8": np.uint8,
        "I8": np.int8,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
        "U16": np.uint16,
        "I16": np.int16,
        "F16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "U32": np.uint32,
        "I32": np.int32,
        "F32": np.float32,
        "U64": np.uint64,
        "I64": np.int64,
        "F64": np.float64,
        "C64": np.complex64,
    }.items()
}
"""safetensors dtype code -> NumPy dtype."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies.

    name: as in the file. file: the safetensors file. dtype: safetensors code, a key of DTYPES. shape: () for a scalar.
    start: absolute offset of the first byte in the file. nbytes: bytes of the tensor.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    @property
    def where(self) -> str:
        """The tensor as error messages name it: file, name, dtype and shape."""
        return f"{self.file}: {self.name} {self.dtype} {list(self.shape)}"


def read_header(path: str | os.PathLike) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Reads and checks the header of a safetensors file; no tensor is read.

    Args:
      path: the file.
    Returns: tensors by name in the order of their offsets; the file's `__metadata__`, empty where there is none.
    Raises: CheckpointError, naming file and tensor, where the length or the JSON is broken, a name comes twice, a dtype
      is unknown, bytes do not match dtype x shape, tensors overlap or leave a gap, or the file is shorter or longer
      than its header says.
    Source: the safetensors format, github.com/huggingface/safetensors.
    """
    path = Path(path)
    raw, file_bytes = read_header_bytes(path)
    entries = parse_object(raw, str(path))
    metadata = _metadata(entries.pop("__metadata__", {}), path)
    first = 8 + len(raw)
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    infos = [_tensor_info(name, entry, path, first, shapes) for name, entry in entries.items()]
    infos.sort(key=lambda info: (info.start, info.nbytes))
    _check_layout(infos, path, first, file_bytes)
    return {info.name: info for info in infos}, metadata


def read_header_bytes(path: Path) -> tuple[bytes, int]:
    """Returns the JSON bytes of a file's header and the size of the file in bytes; raises CheckpointError."""
    try:
        with open(path, "rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if file_bytes < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, file_bytes - 8):
                raise CheckpointError(
                    f"{path}: header length {length} is not between 2 and the file's {file_bytes} bytes "
                    f"(at most {MAX_HEADER_BYTES}): truncated, or not a safetensors file"
                )
            raw = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot read the header: {error.strerror}") from error
    if len(raw) != length:
        raise CheckpointError(f"{path}: the header ends after {len(raw)} of {length} bytes: truncated")
    return raw, file_bytes


def parse_object(raw: bytes, where: str) -> dict:
    """Parses a JSON object and refuses names that come twice in one object; `where` names it in the error."""
    try:
        parsed = json.loads(raw.decode(), object_pairs_hook=_unique)
    except _DuplicateName as error:
        raise CheckpointError(f"{where}: {error.args[0]!r} comes twice") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{where}: a JSON object was wanted, not {type(parsed).__name__}")
    return parsed


class _DuplicateName(Exception):
    """A JSON object holds one name twice; not a ValueError, so that it is not taken for a syntax error."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise _DuplicateName(name)
    return found


def _metadata(found: object, path: Path) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise CheckpointError(f"{path}: __metadata__ must map strings to strings")
    return found


def _tensor_info(
    name: str, entry: object, path: Path, first: int, shapes: dict[tuple[int, ...], tuple[int, ...]]
) -> TensorInfo:
    """One checked entry; equal shapes share one tuple, which matters with hundreds of thousands of tensors."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise CheckpointError(f"{path}: {name}: needs dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise CheckpointError(f"{path}: {name}: unknown dtype {code!r}; known: {', '.join(DTYPES)}")
    if not _are_sizes(shape):
        raise CheckpointError(f"{path}: {name}: bad shape {shape!r}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{path}: {name}: bad data_offsets {offsets!r}")
    nbytes = math.prod(shape) * DTYPES[code].itemsize
    if offsets[1] - offsets[0] != nbytes:
        raise CheckpointError(
            f"{path}: {name}: {code} {shape} takes {nbytes} bytes, but its offsets {offsets} span "
            f"{offsets[1] - offsets[0]}"
        )
    shape = tuple(shape)
    return TensorInfo(name, path, sys.intern(code), shapes.setdefault(shape, shape), first + offsets[0], nbytes)


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _check_layout(infos: list[TensorInfo], path: Path, first: int, file_bytes: int) -> None:
    """Every byte after the header belongs to exactly one tensor."""
    position = first
    for info in infos:
        if info.start != position:
            fault = "overlaps the tensor before it" if info.start < position else "leaves a gap before it"
            raise CheckpointError(f"{path}: {info.name}: starts at byte {info.start}, not {position}: {fault}")
        position += info.nbytes
    if file_bytes < position:
        cut = next(info for info in infos if info.start + info.nbytes > file_bytes)
        raise CheckpointError(f"{path}: {cut.name}: the file ends at byte {file_bytes} of {position}: truncated")
    if file_bytes > position:
        raise CheckpointError(f"{path}: {file_bytes - position} bytes after the last tensor")
