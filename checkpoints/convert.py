"""Makes one checkpoint from another.

    python -m checkpoints.convert SOURCE OUT --recipe=flash_next_4.05   # a plain checkpoint as an EXL3 pack
    python -m checkpoints.convert SOURCE OUT --bits=3.05 --calibration=TEXT   # by average width, errors weighed by
                                                                              # what the layers read of a text
    python -m checkpoints.convert SOURCE OUT --repack       # the same pack, tensors aligned for fast reads
    python -m checkpoints.convert SOURCE OUT --dequantize   # an EXL3 pack as a plain bf16 checkpoint

    python -m checkpoints.convert SOURCE --prepared=DIR     # as the running model holds it: nothing to decode at load

The result grows in OUT.unfinished and takes its name when it is whole and verified; the same command goes on where one
was stopped, however that ended. Host side. Read next: converter/__init__.py.
"""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import numpy as np
from absl import flags

from checkpoints.commands import UsageError, run
from checkpoints.converter.dequantise import dequantise, plain_bytes
from checkpoints.converter.pack import pack_bytes, quantise, work_bytes
from checkpoints.converter.plain import VISION_FILE
from checkpoints.converter.quantise import Calibrator, Settings
from checkpoints.converter.repack import repack
from checkpoints.converter.texts import REPORT
from checkpoints.converter.units import Unit, network_units
from checkpoints.converter.verify import folder_bytes, verify_folder
from checkpoints.converter.widths import Average, average_bits, average_widths, check_widths, recipe_widths
from checkpoints.converter.workplace import Workplace, require_room, working
from checkpoints.errors import CheckpointError
from checkpoints.exl3 import CODEBOOKS
from checkpoints.inventory import Inventory, check
from checkpoints.naming import text_config
from checkpoints.norms import check_norms
from checkpoints.progress import byte_progress
from checkpoints.quantize import OutScales
from checkpoints.recipe import read_recipe
from checkpoints.store import Store, open_store

FLAGS = flags.FlagValues()
REPACK = flags.DEFINE_bool("repack", False, "copy, with tensors on 64 bytes", flag_values=FLAGS)
DEQUANTIZE = flags.DEFINE_bool("dequantize", False, "multiply EXL3 layers out", flag_values=FLAGS)
PREPARED = flags.DEFINE_string("prepared", None, "folder to make: leaves as the model holds them", flag_values=FLAGS)
EXACT = flags.DEFINE_bool("exact", False, "with --prepared: for dtype float32", flag_values=FLAGS)
DTYPE = flags.DEFINE_enum("dtype", "BF16", ["BF16", "F16", "F32"], "of --dequantize's floats", flag_values=FLAGS)
RECIPE = flags.DEFINE_string("recipe", None, "widths by name: a recipe, or a .toml file", flag_values=FLAGS)
BITS = flags.DEFINE_float("bits", None, "average width of the decoder layers", flag_values=FLAGS)
HEAD_BITS = flags.DEFINE_float("head_bits", 6, "width of the head, with --bits", flag_values=FLAGS)
MTP_BITS = flags.DEFINE_float("mtp_bits", 4, "width of the draft head, with --bits", flag_values=FLAGS)
NGRAM_BITS = flags.DEFINE_integer(
    "ngram_bits", None, "width of n-gram rows; 0 keeps them plain", 0, 8, flag_values=FLAGS
)
CODEBOOK = flags.DEFINE_enum("codebook", "mul1", list(CODEBOOKS), "what states stand for", flag_values=FLAGS)
OUT_SCALES = flags.DEFINE_enum(
    "out_scales", "always", ["always", "never", "auto"], "give outputs scales", flag_values=FLAGS
)
SHARED_SCALES = flags.DEFINE_bool(
    "shared_scales", False, "search one codebook factor for each width", flag_values=FLAGS
)
PAD = flags.DEFINE_bool("pad", False, "fill sizes that are no multiples of 128 up with zeros", flag_values=FLAGS)
CALIBRATION = flags.DEFINE_multi_string(
    "calibration", [], "texts, or .npy files of token ids, for Hessians; may be repeated", flag_values=FLAGS
)
CALIBRATION_ROWS = flags.DEFINE_integer("calibration_rows", 250, "sequences of it, at most", 1, flag_values=FLAGS)
CALIBRATION_COLUMNS = flags.DEFINE_integer("calibration_columns", 2048, "tokens of each", 2, flag_values=FLAGS)
SEED = flags.DEFINE_integer("seed", 0, "of the random signs", flag_values=FLAGS)
_PATTERNS = "flash_next_4.05"
"""The recipe that says which linears are quantised, where widths are given as an average."""


def main(positional: list[str]) -> None:
    """Makes the result that the flags ask for, and prints where it is."""
    ways = {
        "--repack": REPACK.value,
        "--dequantize": DEQUANTIZE.value,
        "--prepared": PREPARED.value,
        "--recipe": RECIPE.value,
        "--bits": BITS.value,
    }
    asked = [way for way, value in ways.items() if value not in (None, False)]
    if len(asked) != 1:
        raise UsageError(f"one of {', '.join(ways)} was wanted, found {' and '.join(asked) or 'none'}")
    source, out = _folders([*positional, PREPARED.value] if PREPARED.value else positional)
    with open_store(source) as store:
        {"--repack": _copy, "--dequantize": _dequantise, "--prepared": _prepare}.get(asked[0], _quantise)(store, out)


def _folders(positional: list[str]) -> tuple[Path, Path]:
    if len(positional) != 2:
        raise UsageError(f"a source and a folder to make were wanted, found {len(positional)} arguments")
    source, out = map(Path, positional)
    if not source.is_dir():
        raise UsageError(f"{source}: a folder was wanted")
    if out.absolute() == source.absolute() or source.absolute() in out.absolute().parents:
        raise UsageError(f"{out}: lies in {source}; another place was wanted")
    return source, out


def _copy(store: Store, out: Path) -> None:
    total = sum(store.info(name).nbytes for name in store.names())
    plan = {"work": "repack", "source": store.digest()}
    with working(out, plan) as work:
        if work is not None:
            require_room(out, total - _present(work))
            with byte_progress(2 * total, "repacking") as advance:
                repack(store, work, advance)
            _finish(work)
    print(f"{out}: {total:,} bytes, every one as in {store.path}")


def _dequantise(store: Store, out: Path) -> None:
    inventory = check(store)
    total = plain_bytes(inventory, store, DTYPE.value)
    plan = {"work": "dequantize", "source": store.digest(), "dtype": DTYPE.value}
    with working(out, plan) as work:
        if work is not None:
            require_room(out, total - _present(work))
            with byte_progress(total, "dequantizing") as advance:
                dequantise(store, inventory, work, DTYPE.value, advance)
            _finish(work)
    print(f"{out}: {total:,} bytes of {DTYPE.value}")
    _say_of_vision(inventory, "copied as they are stored")


def _prepare(store: Store, out: Path) -> None:
    from fnx_jax.preparing import arithmetic, prepare

    inventory, kind = check(store), arithmetic(EXACT.value)
    check_norms(store)
    total = sum(store.info(name).nbytes for name in inventory.tensors)
    plan = {"work": "prepare", "source": store.digest(), "exact": kind.exact, "decode": kind.decode}
    with working(out, plan) as work:
        if work is not None:
            require_room(out, total - _present(work))
            with byte_progress(total, "preparing") as advance:
                prepare(store, inventory, work.pack, kind, advance)
            work.finish()
    print(f"{out}: prepared for {'decoded' if kind.decode else 'packed'} weights")
    _say_of_vision(inventory, "left out; the running model has no use for them")


def _quantise(store: Store, out: Path) -> None:
    inventory = check(store)
    units = network_units(inventory)
    _refuse_quantised(store, inventory)
    check_norms(store)
    settings = _settings(units)
    check_widths(units, settings.widths, settings.codebook, settings.ngram_bits, PAD.value)
    token_BT = _calibration_rows(store)
    plan = {"work": "quantize", "source": store.digest(), **_plan(settings), "calibration": _digest(token_BT)}
    with working(out, plan) as work:
        if work is not None:
            require_room(out, pack_bytes(units, settings, store) - _present(work))
            calibrator = None if token_BT is None else _calibrator(store, inventory, token_BT, work)
            with byte_progress(work_bytes(units, settings), "quantizing") as advance:
                quantise(store, inventory, units, work, settings, calibrator, advance)
            _finish(work)
    print(f"{out}: {average_bits(units, settings.widths):.3f} bits a weight in the decoder layers; see {REPORT}")
    _say_of_vision(inventory, f"copied as they are stored, to {VISION_FILE}")


def _say_of_vision(inventory: Inventory, what: str) -> None:
    if inventory.vision:
        print(f"vision tower: {len(inventory.vision)} tensors {what}")


def _refuse_quantised(store: Store, inventory: Inventory) -> None:
    found = next((name for name in inventory.tensors if name.endswith(".trellis")), None)
    if found is not None:
        raise CheckpointError(f"{store.path}: {found}: quantised already; --dequantize comes first")


def _settings(units: list[Unit]) -> Settings:
    recipe = read_recipe(RECIPE.value or _PATTERNS)
    ngram_bits = recipe.ngram_bits if NGRAM_BITS.value is None else NGRAM_BITS.value
    codebook = CODEBOOK.value if BITS.value is not None else recipe.quantization.get("codebook", CODEBOOK.value)
    if BITS.value is not None:
        average = Average(BITS.value, HEAD_BITS.value, MTP_BITS.value)
        widths = average_widths(units, recipe, average, codebook)
    else:
        widths = recipe_widths(units, recipe)
    return Settings(
        widths=widths,
        recipe=replace(recipe, ngram_bits=ngram_bits),
        codebook=codebook,
        ngram_bits=ngram_bits,
        out_scales=cast(OutScales, OUT_SCALES.value),
        shared_scales=SHARED_SCALES.value,
        seed=SEED.value,
    )


def _calibration_rows(store: Store) -> np.ndarray | None:
    """Token ids to learn from, or None where no text is named."""
    if not CALIBRATION.value:
        return None
    # A backend that is up by now never sees serving's flags, which slow the search and are nothing to it.
    import jax

    jax.devices()
    from fnx_jax.token_rows import read_token_rows

    vocabulary = text_config(store.config or {})["vocab_size"]
    try:
        return read_token_rows(
            CALIBRATION.value, store.path, CALIBRATION_ROWS.value, CALIBRATION_COLUMNS.value, vocabulary
        )
    except ValueError as error:
        raise UsageError(f"--calibration: {error}") from error


def _calibrator(store: Store, inventory: Inventory, token_BT: np.ndarray, work: Workplace) -> Calibrator:
    from fnx_jax.calibration import calibrator

    return calibrator(store, inventory, token_BT, work.folder / "streams")


def _digest(token_BT: np.ndarray | None) -> str:
    return "" if token_BT is None else f"{list(token_BT.shape)} {hashlib.sha256(token_BT.tobytes()).hexdigest()}"


def _plan(settings: Settings) -> dict:
    """What another run must ask for to take this one up."""
    names = ("codebook", "ngram_bits", "out_scales", "shared_scales", "seed")
    widths = hashlib.sha256(json.dumps(sorted(settings.widths.items())).encode()).hexdigest()
    dtypes = hashlib.sha256(json.dumps(asdict(settings.recipe), sort_keys=True).encode()).hexdigest()
    return {name: getattr(settings, name) for name in names} | {"widths": widths, "recipe": dtypes}


def _finish(work: Workplace) -> None:
    with byte_progress(folder_bytes(work.pack), "verifying") as advance:
        verify_folder(work.pack, advance)
    work.finish()


def _present(work: Workplace) -> int:
    return sum(file.stat().st_size for file in work.pack.iterdir())


if __name__ == "__main__":
    run(main, FLAGS)
