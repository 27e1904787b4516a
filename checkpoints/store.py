"""Host side: a checkpoint as lazy named tensors over safetensors files. Read next: folder.py, exl3.py.

Headers are read once, when the store is opened; data is read by `os.preadv`, never mapped: a read past the end of a
shrunken file is a named error instead of a dead process, and no page fault holds the interpreter.
"""

import hashlib
import os
import threading
import weakref
from itertools import pairwise
from pathlib import Path
from types import TracebackType

import numpy as np
from jaxtyping import Int

from checkpoints.errors import CheckpointError
from checkpoints.folder import Folder, scan_file, scan_folder
from checkpoints.headers import DTYPES, TensorInfo, read_header, read_header_bytes

ALIGNMENT = 64
"""Bytes to which the data of a read array is aligned: what a device needs to take it without a copy."""


def open_store(path: str | os.PathLike) -> "Store":
    """Opens a checkpoint: checks every header, reads no tensor.

    Args:
      path: a folder (see folder.py for which files count) or one .safetensors file, which stands alone.
    Returns: the store; close it, or use it as a context manager.
    Raises: CheckpointError where a header, the index or config.json is broken, a shard is missing, the index names a
      tensor that no file holds, or two files hold the same name.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    return Store(path, scan_folder(path) if path.is_dir() else scan_file(path))


class Store:
    """Named tensors of a checkpoint; reads are thread-safe and return fresh arrays that nothing else holds.

    Its files close with `close`, or when nothing holds the store any more.

    path: what was opened. config: the parsed config.json of a folder, or None. files: the files read, by name.
    ignored: safetensors files of the folder that do not count. unindexed: tensors that shards hold but the index omits.
    """

    def __init__(self, path: Path, folder: Folder):
        self.path = path
        self.config: dict | None = folder.config
        self.files: tuple[Path, ...] = folder.files
        self.ignored: tuple[str, ...] = folder.ignored
        self._infos: dict[str, TensorInfo] = {}
        self._metadata: dict[str, dict[str, str]] = {}
        self._size_bytes: dict[Path, int] = {}
        for file in self.files:
            self._add(file)
        self.unindexed: tuple[str, ...] = self._compare(folder)
        self._names = tuple(sorted(self._infos))
        self._descriptors: dict[Path, int] = {}
        weakref.finalize(self, _close_all, self._descriptors).atexit = False
        self._lock = threading.Lock()
        self._closed = False

    def _add(self, file: Path) -> None:
        infos, self._metadata[file.name] = read_header(file)
        for name in infos.keys() & self._infos.keys():
            raise CheckpointError(f"{file}: {name}: also in {self._infos[name].file.name}")
        self._infos.update(infos)
        self._size_bytes[file] = file.stat().st_size

    def _compare(self, folder: Folder) -> tuple[str, ...]:
        """Holds the index against the headers, which alone are believed."""
        if folder.index is None:
            return ()
        for name, file_name in folder.index.items():
            if name not in self._infos:
                raise CheckpointError(f"{self.path}: {name}: the index places it in {file_name}, which lacks it")
        shards = set(folder.index.values())
        return tuple(sorted(n for n, info in self._infos.items() if info.file.name in shards and n not in folder.index))

    def __enter__(self) -> "Store":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files; wait for reads in other threads first. A second call does nothing."""
        with self._lock:
            self._closed = True
            _close_all(self._descriptors)

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def __len__(self) -> int:
        return len(self._infos)

    def names(self) -> tuple[str, ...]:
        """Returns all tensor names, sorted."""
        return self._names

    def info(self, name: str) -> TensorInfo:
        """Returns where a tensor lies; raises CheckpointError where there is none of that name."""
        try:
            return self._infos[name]
        except KeyError:
            raise CheckpointError(f"{self.path}: {name}: no such tensor") from None

    def metadata(self, file_name: str) -> dict[str, str]:
        """Returns the `__metadata__` of one of `files`, by file name; raises CheckpointError for another name."""
        if file_name not in self._metadata:
            raise CheckpointError(f"{self.path}: {file_name}: not a file of this checkpoint")
        return dict(self._metadata[file_name])

    def read(self, name: str) -> np.ndarray:
        """Reads a whole tensor in its stored dtype and shape, data aligned to ALIGNMENT bytes.

        Raises: CheckpointError where there is no such tensor, or the file shrank, grew or cannot be read.
        """
        info = self.info(name)
        flat = aligned_bytes(info.nbytes)
        self._fill(info, flat.data, 0, self._descriptor(info))
        return flat.view(DTYPES[info.dtype]).reshape(info.shape)

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray:
        """Reads entries [start, stop) along axis 0; the shape is [stop - start, ...].

        Raises: IndexError where not 0 <= start <= stop <= length or the tensor is a scalar; CheckpointError as `read`.
        """
        info = self.info(name)
        length = info.shape[0] if info.shape else 0
        if not info.shape or not 0 <= start <= stop <= length:
            raise IndexError(f"{info.file}: {name}: [{start}, {stop}) is not within the {length} entries of axis 0")
        row_bytes = info.nbytes // length if length else 0
        flat = aligned_bytes((stop - start) * row_bytes)
        self._fill(info, flat.data, start * row_bytes, self._descriptor(info))
        return flat.view(DTYPES[info.dtype]).reshape(stop - start, *info.shape[1:])

    def read_rows(self, name: str, rows: Int[np.ndarray, "R"]) -> np.ndarray:
        """Reads chosen entries along axis 0, in the order asked for; each is read once, neighbours together.

        Args:
          name: a tensor of one or more axes. rows: integers in [0, length), any order, repeats allowed.
        Returns: [R, ...] in the stored dtype.
        Raises: IndexError for a row out of range or a scalar tensor; CheckpointError as `read`.
        """
        info = self.info(name)
        rows = np.asarray(rows)
        if rows.ndim != 1 or not (np.issubdtype(rows.dtype, np.integer) or rows.size == 0):
            raise IndexError(f"{name}: rows must be integers [R], not {rows.dtype} {rows.shape}")
        length = info.shape[0] if info.shape else 0
        if rows.size and (not info.shape or rows.min() < 0 or rows.max() >= length):
            raise IndexError(f"{info.file}: {name}: rows {rows.min()} to {rows.max()}, but axis 0 has {length} entries")
        wanted, place = np.unique(rows.astype(np.int64), return_inverse=True)
        row_bytes = info.nbytes // length if length else 0
        flat = aligned_bytes(len(wanted) * row_bytes)
        self._fill_runs(info, flat.data, wanted, row_bytes)
        table = flat.view(DTYPES[info.dtype]).reshape(len(wanted), *info.shape[1:])
        return table[place]

    def _fill_runs(self, info: TensorInfo, target: memoryview, wanted: np.ndarray, row_bytes: int) -> None:
        """Fills `target` with ascending rows, one read for each run of neighbours."""
        descriptor = self._descriptor(info)
        firsts = np.flatnonzero(np.diff(wanted, prepend=-2) != 1)
        for first, last in pairwise([*firsts.tolist(), len(wanted)]):
            offset = int(wanted[first]) * row_bytes
            self._fill(info, target[first * row_bytes : last * row_bytes], offset, descriptor)

    def _fill(self, info: TensorInfo, target: memoryview, offset: int, descriptor: int) -> None:
        """Fills `target` from `offset` bytes into the tensor; one preadv may return less than asked for."""
        done = 0
        while done < len(target):
            try:
                count = os.preadv(descriptor, [target[done:]], info.start + offset + done)
            except OSError as error:
                raise CheckpointError(f"{info.file}: {info.name}: cannot read: {error.strerror}") from error
            if count == 0:
                raise CheckpointError(f"{info.file}: {info.name}: the file ended {len(target) - done} bytes early")
            done += count

    def _descriptor(self, info: TensorInfo) -> int:
        """The open file of a tensor, opened at the first read; refuses a file whose size is not what was checked."""
        with self._lock:
            if self._closed:
                raise ValueError(f"{self.path}: the store is closed")
            if info.file not in self._descriptors:
                try:
                    self._descriptors[info.file] = os.open(info.file, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    raise CheckpointError(f"{info.file}: {info.name}: cannot open: {error.strerror}") from error
            descriptor = self._descriptors[info.file]
        size, checked = os.fstat(descriptor).st_size, self._size_bytes[info.file]
        if size != checked:
            raise CheckpointError(f"{info.file}: {info.name}: the file changed from {checked} to {size} bytes")
        return descriptor

    def digest(self) -> str:
        """Identifies the files without reading their data.

        SHA-256, in hexadecimal, of one line a file, sorted by file name: the name, the size in bytes and the SHA-256
        of the header's JSON bytes (padding included), separated by tabs and ended by a line feed, in UTF-8. Times,
        folder, config.json, index and tensor data have no part in it.
        """
        total = hashlib.sha256()
        for file in sorted(self.files, key=lambda file: file.name):
            raw, size = read_header_bytes(file)
            total.update(f"{file.name}\t{size}\t{hashlib.sha256(raw).hexdigest()}\n".encode())
        return total.hexdigest()


def _close_all(descriptors: dict[Path, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


def aligned_bytes(nbytes: int) -> np.ndarray:
    """Returns an uninitialised uint8 array of `nbytes` whose data starts on a multiple of ALIGNMENT."""
    room = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -room.ctypes.data % ALIGNMENT
    return room[skip : skip + nbytes]
