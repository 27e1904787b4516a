"""Host side: what must hold of a finished result before it takes its name: every tensor there, every value sound."""

from collections.abc import Callable
from pathlib import Path

from checkpoints.deep import check_values
from checkpoints.inventory import check
from checkpoints.store import open_store


def verify_folder(folder: Path, advance: Callable[[int], None]) -> str:
    """Reads every byte of a checkpoint and holds it against its config; returns its digest. Raises CheckpointError."""
    with open_store(folder) as store:
        check_values(store, check(store), advance)
        return store.digest()


def folder_bytes(folder: Path) -> int:
    """Bytes of a checkpoint's tensors, of which `verify_folder` tells."""
    with open_store(folder) as store:
        return sum(store.info(name).nbytes for name in store.names())
