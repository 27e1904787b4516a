"""Host side: makes a prepared checkpoint from any other. Read next: prepared.py."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import jax

from checkpoints.chunks import read_chunks
from checkpoints.converter.repack import compare_tensor
from checkpoints.converter.texts import copy_texts
from checkpoints.inventory import Inventory
from checkpoints.naming import language_prefix
from checkpoints.outlines import NGRAM_FILE
from checkpoints.store import Store, open_store
from checkpoints.write import Entry, write_entries, write_json
from fnx_jax.families.flash_next.config import read_config
from fnx_jax.families.flash_next.reading import Arithmetic, Progress, StoreSource
from fnx_jax.prepared import ABOUT, FORMAT, About, write_parts


def arithmetic(exact: bool) -> Arithmetic:
    """What the devices of this machine want of their leaves."""
    return Arithmetic(exact=exact, decode=jax.default_backend() == "cpu")


def prepare(store: Store, inventory: Inventory, folder: Path, kind: Arithmetic, progress: Progress) -> None:
    """Writes a checkpoint's leaves, tables and texts into `folder`; parts that are there are kept.

    Raises: CheckpointError naming what is wrong with the store, or a part that reads differently from what was written.
    """
    prefix = language_prefix(store)
    config = replace(read_config(store.config or {}), mtp_layers=inventory.mtp_layers)
    nbytes = write_parts(StoreSource(store, kind, progress), config, prefix, folder)
    names = [name for name in store.names() if name.startswith(tuple(table.prefix for table in inventory.tables))]
    if names and not (folder / NGRAM_FILE).exists():
        metadata = store.metadata(store.info(names[0]).file.name)
        entries = [
            Entry(info.name, info.dtype, info.shape, partial(_chunks, store, info.name, progress))
            for info in map(store.info, names)
        ]
        write_entries(folder / NGRAM_FILE, entries, metadata)
        with open_store(folder / NGRAM_FILE) as copy:
            for name in names:
                compare_tensor(store, copy, name, lambda nbytes: None)
    copy_texts(store.path, folder)
    write_json(folder / "config.json", store.config)
    about = About(store.digest(), prefix, inventory.mtp_layers, kind.exact, kind.decode, nbytes)
    write_json(folder / ABOUT, {"format": FORMAT} | asdict(about))


def _chunks(store: Store, name: str, progress: Progress):
    for _, chunk in read_chunks(store, store.info(name)):
        yield chunk
        progress(chunk.nbytes)
