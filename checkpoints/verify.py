"""Checks a checkpoint: that every tensor is there and nothing else; with --deep, that the values make sense.

    python -m checkpoints.verify PATH [--deep]

Prints a summary and ends with 0, or one line that names what is wrong and ends with 3. Host side. Read next:
inventory.py, deep.py.
"""

from absl import flags

from checkpoints.commands import one_path, run
from checkpoints.deep import check_values
from checkpoints.exl3 import MARKERS
from checkpoints.inventory import Inventory, check
from checkpoints.progress import byte_progress
from checkpoints.store import Store, open_store

FLAGS = flags.FlagValues()
DEEP = flags.DEFINE_bool(
    "deep", False, "read every byte and check floats, markers, norms and hash constants", flag_values=FLAGS
)
QUIET = flags.DEFINE_bool("quiet", False, "print nothing unless something is wrong", flag_values=FLAGS)


def main(positional: list[str]) -> None:
    """Verifies one checkpoint and prints what was checked."""
    with open_store(one_path(positional, "checkpoint to verify")) as store:
        inventory = check(store)
        if DEEP.value:
            _check_deep(store, inventory)
        if not QUIET.value:
            print(summary(store, inventory, DEEP.value))


def summary(store: Store, inventory: Inventory, deep: bool) -> str:
    """Returns what holds about a verified store, a line each."""
    layers = sum(name.endswith(".trellis") for name in inventory.tensors)
    vision = f"{len(inventory.vision):,} of the vision tower" if inventory.vision else "no vision tower"
    head = f"draft head of depth {inventory.mtp_layers}" if inventory.mtp_layers else "no draft head"
    nbytes = sum(store.info(name).nbytes for name in store.names())
    read = (
        f"{nbytes:,} bytes read: floats finite, {', '.join(MARKERS)} markers, norms around 0, hash constants as derived"
    )
    return "\n".join(
        (
            f"{store.path}: good",
            f"  {len(inventory.tensors):,} tensors of the network in {len(store.files)} files, {vision}",
            f"  {layers:,} EXL3 trellises, {head}",
            f"  {read if deep else 'headers only; --deep reads the values too'}",
            f"  digest {store.digest()}",
        )
    )


def _check_deep(store: Store, inventory: Inventory) -> None:
    if QUIET.value:
        check_values(store, inventory)
        return
    total_bytes = sum(store.info(name).nbytes for name in store.names())
    with byte_progress(total_bytes, "reading") as advance:
        check_values(store, inventory, advance)


if __name__ == "__main__":
    run(main, FLAGS)
