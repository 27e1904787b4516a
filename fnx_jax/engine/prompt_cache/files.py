"""Host side: one kept state in one file, written whole or not at all, and checked block by block before it is used.

A safetensors file: the prompt's tokens and the arrays that were held, by number. Its metadata say what made it and hold
a CRC-32 of every BLOCK_BYTES of every tensor, begun from all that describes the block, so that neither a byte nor its
meaning can change unseen. Read next: disk.py.
"""

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import get_args

import numpy as np

from checkpoints.errors import CheckpointError
from checkpoints.headers import DTYPES, TensorInfo, read_header
from checkpoints.write import array_entry, write_entries
from fnx_jax.engine.prompt_cache.away import Away
from fnx_jax.engine.prompt_cache.entries import Kind

BLOCK_BYTES = 8 << 20
FORMAT = "1"
OWNER_ONLY = 0o600
_TOKENS = "tokens"


class StateFileError(Exception):
    """A file that holds no kept state, or not the one that was written; the message says what is wrong."""


class ForeignFile(StateFileError):
    """A kept state of another checkpoint, of other settings or of another program."""


@dataclass(frozen=True)
class About:
    """What a file says before its state is read. tokens, kind: as in Entry. nbytes: of the file."""

    tokens: np.ndarray
    kind: Kind
    nbytes: int


def most_bytes(away: Away) -> int:
    """Returns what the file of a state takes at most, in bytes."""
    tensors = len(away.held) + 1
    data = away.nbytes + away.tokens.nbytes
    return data + 4096 + 256 * tensors + 16 * (tensors + data // BLOCK_BYTES)


def write_state(path: Path, fingerprint: str, away: Away) -> None:
    """Writes a state for its owner's eyes only. Raises OSError; there is no file then."""
    arrays = {_TOKENS: away.tokens, **{str(number): array for number, array in enumerate(away.held)}}
    entries = [array_entry(name, array) for name, array in arrays.items()]
    sums = {
        entry.name: _sums(_begin(fingerprint, away.kind, entry.name, entry.dtype, entry.shape), _bytes(array))
        for entry, array in zip(entries, arrays.values(), strict=True)
    }
    about = {"kept_state": FORMAT, "fingerprint": fingerprint, "kind": away.kind, "crc32": json.dumps(sums)}
    write_entries(path, entries, about, OWNER_ONLY)


def read_about(path: Path, fingerprint: str) -> About:
    """Reads a file's header and tokens. Raises StateFileError, ForeignFile."""
    with _Reader(path, fingerprint) as reader:
        return About(reader.array(_TOKENS), reader.kind, reader.nbytes)


def read_state(path: Path, fingerprint: str) -> Away:
    """Reads a whole state. Raises StateFileError, ForeignFile."""
    with _Reader(path, fingerprint) as reader:
        held = tuple(reader.array(str(number)) for number in range(reader.arrays))
        return Away(reader.array(_TOKENS), reader.kind, held)


class _Reader:
    """An open file of `nbytes`. kind: of its state. arrays: held beside the tokens. Raises as `read_state`."""

    def __init__(self, path: Path, fingerprint: str):
        try:
            self._infos, about = read_header(path)
            self._file: BufferedReader = open(path, "rb")
        except (CheckpointError, OSError) as error:
            raise StateFileError(str(error)) from error
        try:
            self._read_about(about, fingerprint)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "_Reader":
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    @property
    def nbytes(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def array(self, name: str) -> np.ndarray:
        """Reads a tensor and checks every block of it."""
        info = self._infos[name]
        data = np.empty(info.nbytes, np.uint8)
        try:
            self._file.seek(info.start)
            whole = self._file.readinto(data.data) == info.nbytes if info.nbytes else True
        except OSError as error:
            raise StateFileError(f"{info.where}: {error}") from error
        begin = _begin(self._fingerprint, self.kind, name, info.dtype, info.shape)
        if not whole or _sums(begin, data.data) != self._sums.get(name):
            raise StateFileError(f"{info.where}: not the bytes that were written")
        return data.view(DTYPES[info.dtype]).reshape(info.shape)

    def _read_about(self, about: dict[str, str], fingerprint: str) -> None:
        where = self._file.name
        if about.get("kept_state") is None:
            raise StateFileError(f"{where}: no kept state")
        if (about["kept_state"], about.get("fingerprint")) != (FORMAT, fingerprint):
            raise ForeignFile(f"{where}: made by {about.get('fingerprint')}, not by {fingerprint}")
        self._fingerprint, self.arrays = fingerprint, len(self._infos) - 1
        try:
            self._sums = json.loads(about["crc32"])
        except (KeyError, ValueError, RecursionError) as error:
            raise StateFileError(f"{where}: no checksums") from error
        names = {_TOKENS, *map(str, range(self.arrays))}
        kinds = [kind for kind in get_args(Kind) if kind == about.get("kind")]
        if not kinds or set(self._infos) != names or not isinstance(self._sums, dict):
            raise StateFileError(f"{where}: not the parts of a kept state")
        self.kind: Kind = kinds[0]
        if not _are_tokens(self._infos[_TOKENS]):
            raise StateFileError(f"{self._infos[_TOKENS].where}: no tokens")


def _are_tokens(info: TensorInfo) -> bool:
    return info.dtype == "I32" and len(info.shape) == 1 and info.shape[0] > 0


def _begin(fingerprint: str, kind: str, name: str, dtype: str, shape: tuple[int, ...]) -> int:
    """What the sums of a tensor begin from."""
    return zlib.crc32(f"{fingerprint} {kind} {name} {dtype} {list(shape)}".encode())


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _sums(begin: int, data: memoryview) -> list[int]:
    """The sum of each block, begun from its number too."""
    return [zlib.crc32(block, zlib.crc32(str(at).encode(), begin)) for at, block in _blocks(data)]


def _blocks(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    for at in range(0, max(len(data), 1), BLOCK_BYTES):
        yield at, data[at : at + BLOCK_BYTES]
