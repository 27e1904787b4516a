"""Makes one checkpoint from another.

    python -m checkpoints.convert SOURCE OUT --repack       # the same pack, tensors aligned for fast reads
    python -m checkpoints.convert SOURCE OUT --dequantize   # an EXL3 pack as a plain bf16 checkpoint

The result grows in OUT.unfinished and takes its name when it is whole and verified; the same command goes on where one
was stopped, however that ended. Host side. Read next: converter/__init__.py.
"""

from pathlib import Path

from absl import flags

from checkpoints.commands import UsageError, run
from checkpoints.converter.dequantise import dequantise, plain_bytes
from checkpoints.converter.repack import repack
from checkpoints.converter.verify import folder_bytes, verify_folder
from checkpoints.converter.workplace import Workplace, require_room, working
from checkpoints.inventory import check
from checkpoints.progress import byte_progress
from checkpoints.store import Store, open_store

FLAGS = flags.FlagValues()
REPACK = flags.DEFINE_bool("repack", False, "copy, with tensors on 64 bytes", flag_values=FLAGS)
DEQUANTIZE = flags.DEFINE_bool("dequantize", False, "multiply EXL3 layers out", flag_values=FLAGS)
DTYPE = flags.DEFINE_enum("dtype", "BF16", ["BF16", "F16", "F32"], "of --dequantize's floats", flag_values=FLAGS)


def main(positional: list[str]) -> None:
    """Makes the result that the flags ask for, and prints where it is."""
    if REPACK.value and DEQUANTIZE.value:
        raise UsageError("one of --repack and --dequantize was wanted, not both")
    if not (REPACK.value or DEQUANTIZE.value):
        raise UsageError("--repack or --dequantize was wanted")
    source, out = _folders(positional)
    with open_store(source) as store:
        _copy(store, out) if REPACK.value else _dequantise(store, out)


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


def _finish(work: Workplace) -> None:
    with byte_progress(folder_bytes(work.pack), "verifying") as advance:
        verify_folder(work.pack, advance)
    work.finish()


def _present(work: Workplace) -> int:
    return sum(file.stat().st_size for file in work.pack.iterdir())


if __name__ == "__main__":
    run(main, FLAGS)
