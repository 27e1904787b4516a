"""Host side: how much sooner is a model there from its prepared form, or from a repacked copy, than from its pack?

    python -m experiments.bench.prepared --model=PACK --receipt

The two forms are made first, in --folder or in a place that goes away. Then the pack and each form are loaded in turn,
A B B A, from the folder to arrays on the devices, and freed. Files that fit into memory stay there between loads, so
this compares the work of reading, not disks. Read next: fnx_jax/prepared.py, checkpoints/converter/repack.py.
"""

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from absl import flags, logging
from rich.console import Console
from rich.table import Table

import fnx_jax
from checkpoints import convert
from checkpoints.commands import DEMO, UsageError, execute, run
from experiments.bench.interleave import Compared, compare
from experiments.receipts import make_receipt, note_origin, write_receipt

FORMS = {"prepared": "--prepared={}", "repacked": "--repack"}
"""Flag of the converter by form."""

FLAGS = flags.FlagValues()
flags.DEFINE_string("model", str(DEMO), "Folder of the pack.", flag_values=FLAGS)
flags.DEFINE_string("folder", "", "Where the other forms are made and stay; they may be there.", flag_values=FLAGS)
flags.DEFINE_integer("tp", 1, "Devices.", 1, flag_values=FLAGS)
flags.DEFINE_integer("repeats", 5, "Times A B B A.", 1, flag_values=FLAGS)
flags.DEFINE_bool("receipt", False, "Write a receipt into experiments/results.", flag_values=FLAGS)


def make_forms(model: Path, folder: Path) -> dict[str, Path]:
    """Makes a pack's other forms in a folder; those that are there stay. Raises UsageError where that fails."""
    found = {}
    for form, flag in FORMS.items():
        out = found[form] = folder / form
        if out.exists():
            continue
        positional = [str(model)] if "{}" in flag else [str(model), str(out)]
        if code := execute(convert.main, convert.FLAGS, ["convert", *positional, flag.format(out)]):
            raise UsageError(f"{model}: the converter ended with {code}, so there is no {form} form to compare")
    return found


def load_and_free(folder: Path, devices: int) -> fnx_jax.Model:
    """Loads a checkpoint until all of it is on the devices, then frees it there."""
    model = fnx_jax.load(folder, devices=devices, lanes=1)
    leaves = jax.tree.leaves((model.params, model.steps.device.params, model.steps.state, model.steps.device.valid_V))
    jax.block_until_ready(leaves)
    for leaf in leaves:
        if not leaf.is_deleted():
            leaf.delete()
    return model


def loading(folder: Path, devices: int) -> Callable[[], object]:
    """`load_and_free` as a call without arguments."""
    return lambda: load_and_free(folder, devices)


def folder_bytes(folder: Path) -> int:
    """Of all files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def measure(model: Path, folder: Path, devices: int, repeats: int) -> dict[str, tuple[Compared, int, int]]:
    """By form: the pack's load against its own, bytes of the pack and of the form."""
    found = {}
    for form, other in make_forms(model, folder).items():
        compared = compare(loading(model, devices), loading(other, devices), repeats)
        found[form] = compared, folder_bytes(model), folder_bytes(other)
    return found


def figures(found: dict[str, tuple[Compared, int, int]]) -> dict[str, Any]:
    """Results by form, as JSON."""
    return {
        form: asdict(compared) | {"pack_bytes": pack_bytes, "form_bytes": form_bytes}
        for form, (compared, pack_bytes, form_bytes) in found.items()
    }


def main(positional: list[str]) -> int:
    """Prints a line a form."""
    if positional:
        raise UsageError(f"unexpected {' '.join(positional)}")
    origin = note_origin() if FLAGS.receipt else None
    logging.set_verbosity(logging.WARNING)
    model = Path(FLAGS.model)
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(model, Path(FLAGS.folder or scratch), FLAGS.tp, FLAGS.repeats)
    console = Console(width=120)
    table = Table(title=f"loading {model.name} on {FLAGS.tp} devices: the pack against its other forms")
    for column in ("form", "pack ms", "form ms", "ratio", "cpu", "quartiles", "pack MB", "form MB"):
        table.add_column(column, justify="right")
    for form, (compared, *sizes) in found.items():
        table.add_row(form, *compared.columns(), *(f"{size / 1e6:.1f}" for size in sizes))
    console.print(table)
    if origin is not None:
        prints = asdict(load_and_free(model, FLAGS.tp).fingerprint)
        receipt = make_receipt(
            origin, "prepared", jax.devices()[0].device_kind, {"devices": FLAGS.tp} | figures(found), fingerprint=prints
        )
        console.print(f"receipt: {write_receipt(receipt)}")
    return 0


if __name__ == "__main__":
    run(main, FLAGS)
