"""Host side: writes safetensors files whose tensors can be handed to a device as they lie. Read next: store.py."""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from checkpoints.headers import DTYPES, MAX_HEADER_BYTES
from checkpoints.store import ALIGNMENT

_CODES = {dtype: code for code, dtype in DTYPES.items()}


def write_safetensors(
    path: str | os.PathLike, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a file atomically: under another name, synced, then renamed, so that `path` is never half a file.

    The header is padded with spaces so that data starts on ALIGNMENT bytes. The format allows no gaps between
    tensors, so those whose size is a multiple of ALIGNMENT come first, in the order given, and are all aligned; the
    others follow, those with more whole powers of two in their size first, each aligned to its own element at least.

    Args:
      tensors: arrays by name, of any dtype in headers.DTYPES; a scalar has shape ().
      metadata: the file's `__metadata__`.
    Raises: ValueError, before a file is made, for a dtype or a name the format does not have, or metadata that is not
      strings; OSError where writing fails, and then `path` is as it was.
    """
    path = Path(path)
    ordered = dict(sorted(tensors.items(), key=lambda item: -_alignment(item[1].nbytes)))
    header = _header(ordered, dict(metadata or {}))
    with _replacing(path) as descriptor:
        _write_all(descriptor, memoryview(header))
        for array in ordered.values():
            _write_all(descriptor, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _alignment(nbytes: int) -> int:
    """The largest power of two up to ALIGNMENT that divides a size."""
    return min(nbytes & -nbytes, ALIGNMENT) if nbytes else ALIGNMENT


def _header(tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    """Length and JSON of the header, padded."""
    if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise ValueError("write_safetensors: metadata must map strings to strings")
    entries: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, array in tensors.items():
        if name == "__metadata__":
            raise ValueError("write_safetensors: __metadata__ is no name for a tensor")
        if array.dtype not in _CODES:
            raise ValueError(f"write_safetensors: {name}: no safetensors dtype for {array.dtype!r}")
        offsets = [offset, offset + array.nbytes]
        entries[name] = {"dtype": _CODES[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
        offset = offsets[1]
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"write_safetensors: the header takes {len(text)} bytes, the format allows {MAX_HEADER_BYTES}")
    return len(text).to_bytes(8, "little") + text


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[int]:
    """Gives the descriptor of a new file beside `path`, which takes its place on success and goes away on failure."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}.unfinished")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
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
