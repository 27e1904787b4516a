"""Host side: the tensors of a pack that are not quantised, in the dtypes of its recipe. Read next: pack.py."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np

from checkpoints.architecture import Experts, Linear, Plain
from checkpoints.chunks import read_chunks
from checkpoints.converter.jobs import read_weight, weight_name
from checkpoints.converter.quantise import Settings
from checkpoints.converter.units import Unit
from checkpoints.converter.widths import part_linears
from checkpoints.converter.workplace import Workplace
from checkpoints.errors import CheckpointError
from checkpoints.headers import DTYPES
from checkpoints.inventory import Inventory
from checkpoints.naming import MTP_PREFIX
from checkpoints.store import Store
from checkpoints.write import Entry, write_entries

_MIXER_PREFIX = f"{MTP_PREFIX}hyper_connection_mixer."
_VISION_FILE = "vision_plain.safetensors"


def stored(store: Store, name: str) -> Iterator[np.ndarray]:
    for _, chunk in read_chunks(store, store.info(name)):
        yield chunk


def plain_entries(store: Store, unit: Unit, settings: Settings) -> Iterator[Entry]:
    """What of a unit is not quantised, in the dtypes of the recipe."""
    for part in unit.parts:
        if isinstance(part, Plain):
            yield _plain_entry(part.name, part.shape, settings, partial(stored, store, part.name))
        elif isinstance(part, Linear | Experts):
            for linear in part_linears(part):
                if linear.name in settings.widths:
                    continue
                if isinstance(part, Experts):
                    values = partial(_expert, store, linear)
                else:
                    values = partial(stored, store, f"{weight_name(store, linear.name)}.weight")
                yield _plain_entry(f"{linear.name}.weight", linear.shape, settings, values)


def _plain_entry(
    name: str, shape: tuple[int, ...], settings: Settings, values: Callable[[], Iterable[np.ndarray]]
) -> Entry:
    dtype = settings.recipe.dtype_of(name)
    return Entry(name, dtype, shape, partial(_cast, values, dtype, name))


def _expert(store: Store, linear: Linear) -> list[np.ndarray]:
    return [np.ascontiguousarray(read_weight(store, linear).T)]


def _cast(values: Callable[[], Iterable[np.ndarray]], dtype: str, name: str) -> Iterator[np.ndarray]:
    for chunk in values():
        with np.errstate(over="ignore"):
            cast = chunk.astype(DTYPES[dtype])
        if not np.isfinite(cast.astype(np.float32)).all():
            raise CheckpointError(f"{name}: holds a value that is not finite in {dtype}")
        yield cast


def in_side_file(name: str, settings: Settings) -> bool:
    return bool(settings.recipe.mtp_mixer_file) and name.startswith(_MIXER_PREFIX)


def write_side_files(store: Store, inventory: Inventory, work: Workplace, settings: Settings) -> None:
    """The files outside the index: the mixer of the draft head where the recipe has it there, and the vision tower."""
    mixer_file = settings.recipe.mtp_mixer_file
    names = [name for name in inventory.tensors if name.startswith(_MIXER_PREFIX)] if mixer_file else []
    if names:
        entries = [_plain_entry(n, store.info(n).shape, settings, partial(stored, store, n)) for n in names]
        write_entries(work.pack / mixer_file, entries, {"format": "pt"})
    if inventory.vision:
        infos = [store.info(name) for name in inventory.vision]
        entries = [Entry(i.name, i.dtype, i.shape, partial(stored, store, i.name)) for i in infos]
        write_entries(work.pack / _VISION_FILE, entries, {"format": "pt"})
