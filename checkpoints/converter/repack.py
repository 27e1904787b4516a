"""Host side: a copy of a checkpoint whose tensors start on 64 bytes, an expert's side by side, for fast reads."""

from collections.abc import Callable
from functools import partial

import numpy as np

from checkpoints.chunks import read_chunks
from checkpoints.converter.texts import copy_texts
from checkpoints.converter.workplace import Workplace
from checkpoints.errors import CheckpointError
from checkpoints.headers import TensorInfo
from checkpoints.store import ALIGNMENT, Store, open_store
from checkpoints.write import Entry, write_entries

Advance = Callable[[int], None]
"""Told of bytes done."""


def repack(store: Store, work: Workplace, advance: Advance) -> None:
    """Copies every file of a checkpoint under its name, tensors in the order of their names, then compares all bytes.

    Args:
      advance: told the bytes of each tensor twice, when it is written and when it is compared.
    Raises: CheckpointError where the copy differs from the source.
    """
    for file in store.files:
        infos = [store.info(name) for name in store.names() if store.info(name).file == file]
        if (work.pack / file.name).exists():
            advance(sum(info.nbytes for info in infos))
            continue
        entries = [Entry(info.name, info.dtype, info.shape, partial(_copied, store, info, advance)) for info in infos]
        write_entries(work.pack / file.name, entries, store.metadata(file.name))
    copy_texts(store.path, work.pack, but=())
    with open_store(work.pack) as copy:
        compare(store, copy, advance)


def compare(store: Store, copy: Store, advance: Advance) -> None:
    """Raises CheckpointError, naming the tensor, where a copy differs from the store or is not aligned."""
    if store.names() != copy.names():
        raise CheckpointError(f"{copy.path}: holds other tensors than {store.path}")
    for name in store.names():
        ours, theirs = copy.info(name), store.info(name)
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            raise CheckpointError(f"{ours.where}: differs from {theirs.where}")
        if ours.nbytes % ALIGNMENT == 0 and ours.start % ALIGNMENT:
            raise CheckpointError(f"{ours.where}: starts at byte {ours.start}, not a multiple of {ALIGNMENT}")
        compare_tensor(store, copy, name, advance)


def compare_tensor(store: Store, copy: Store, name: str, advance: Advance) -> None:
    """Raises CheckpointError where the bytes of a tensor differ."""
    ours, theirs = copy.info(name), store.info(name)
    for (first, wanted), (_, found) in zip(read_chunks(store, theirs), read_chunks(copy, ours), strict=True):
        if not np.array_equal(wanted.reshape(-1).view(np.uint8), found.reshape(-1).view(np.uint8)):
            raise CheckpointError(f"{ours.where}: the entries from {first} on differ from {theirs.file}")
        advance(wanted.nbytes)


def _copied(store: Store, info: TensorInfo, advance: Advance):
    for _, chunk in read_chunks(store, info):
        yield chunk
        advance(chunk.nbytes)
