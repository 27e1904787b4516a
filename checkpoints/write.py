"""Host side: writes safetensors files whose tensors can be handed to a device as they lie. Read next: store.py."""

import contextlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from checkpoints.headers import DTYPES, MAX_HEADER_BYTES
from checkpoints.store import ALIGNMENT

_CODES = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """One tensor to write. dtype: safetensors code. pieces: gives its values in order, in arrays of any shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[np.ndarray]]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def write_safetensors(
    path: str | os.PathLike, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """`write_entries` of whole arrays by name, of any dtype in headers.DTYPES; a scalar has shape ()."""
    write_entries(path, [array_entry(name, array) for name, array in tensors.items()], metadata)


def array_entry(name: str, array: np.ndarray) -> Entry:
    """A whole array as an entry. Raises ValueError for a dtype that the format does not have."""
    if array.dtype not in _CODES:
        raise ValueError(f"write_safetensors: {name}: no safetensors dtype for {array.dtype!r}")
    return Entry(name, _CODES[array.dtype], array.shape, lambda: [array])


def write_entries(
    path: str | os.PathLike,
    entries: Sequence[Entry],
    metadata: Mapping[str, str] | None = None,
    mode: int = 0o666,
) -> None:
    """Writes a file atomically: under another name, synced, then renamed, so that `path` is never half a file.

    The header is padded with spaces so that data starts on ALIGNMENT bytes. The format allows no gaps between
    tensors, so those whose size is a multiple of ALIGNMENT come first, in the order given, and are all aligned; the
    others follow, those with more whole powers of two in their size first, each aligned to its own element at least.

    Args:
      entries: what to write; values are asked for one tensor at a time. metadata: the file's `__metadata__`.
      mode: permissions of the file, less those that the process withholds from all its files.
    Raises: ValueError, before a file is made, for a name the format does not have or metadata that is not strings;
      ValueError where pieces do not fill their tensor; OSError where writing fails. `path` is then as it was.
    """
    path = Path(path)
    ordered = sorted(entries, key=lambda entry: -_alignment(entry.nbytes))
    header = _header(ordered, dict(metadata or {}))
    with _replacing(path, mode) as descriptor:
        _write_all(descriptor, memoryview(header))
        for entry in ordered:
            written = 0
            for piece in entry.pieces():
                _write_all(descriptor, np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
                written += piece.nbytes
            if written != entry.nbytes:
                raise ValueError(f"write_entries: {entry.name}: {written} bytes came for {entry.nbytes}")


def write_json(path: Path, content: object) -> None:
    """Writes a JSON file atomically, as `write_entries` writes its files."""
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    with _replacing(path) as descriptor:
        _write_all(descriptor, memoryview(text.encode()))


def _alignment(nbytes: int) -> int:
    """The largest power of two up to ALIGNMENT that divides a size."""
    return min(nbytes & -nbytes, ALIGNMENT) if nbytes else ALIGNMENT


def _header(ordered: Sequence[Entry], metadata: dict[str, str]) -> bytes:
    """Length and JSON of the header, padded."""
    if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise ValueError("write_safetensors: metadata must map strings to strings")
    entries: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for entry in ordered:
        if entry.name == "__metadata__":
            raise ValueError("write_safetensors: __metadata__ is no name for a tensor")
        offsets = [offset, offset + entry.nbytes]
        entries[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": offsets}
        offset = offsets[1]
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"write_safetensors: the header takes {len(text)} bytes, the format allows {MAX_HEADER_BYTES}")
    return len(text).to_bytes(8, "little") + text


@contextlib.contextmanager
def _replacing(path: Path, mode: int = 0o666) -> Iterator[int]:
    """Gives the descriptor of a new file beside `path`, which takes its place on success and goes away on failure."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # the rename itself must survive a power cut
    finally:
        os.close(folder)


def _write_all(descriptor: int, data: memoryview) -> None:
    """Writes everything; one write may take less than it is given."""
    done = 0
    while done < len(data):
        done += os.write(descriptor, data[done:])
