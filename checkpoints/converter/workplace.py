"""Host side: the folder where a result grows until it is whole, so that nothing half-written is taken for a pack.

The work is done in `<out>.unfinished` beside the result: `plan.json` says what it is, `pack/` holds finished files
under their last names, `pieces/` parts of the next one. At the end `pack/` is renamed to `<out>`, which is the moment
the result exists. Files are renamed into place too, so a run that dies anywhere is taken up by the next one.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from checkpoints.errors import CheckpointError
from checkpoints.write import write_json

_PLAN, _LOCK = "plan.json", "lock"


class Workplace:
    """The folders of one piece of work. out: the result. pack: its finished files. pieces: parts of unfinished ones."""

    def __init__(self, out: Path):
        self.out = out
        self.folder = out.with_name(out.name + ".unfinished")
        self.pack, self.pieces = self.folder / "pack", self.folder / "pieces"

    def finish(self) -> None:
        """Makes the result exist, then removes what is left of the work."""
        if self.out.exists():
            self.out.rmdir()
        os.rename(self.pack, self.out)
        _sync_folder(self.out.parent)
        shutil.rmtree(self.folder)


@contextlib.contextmanager
def working(out: Path, plan: dict) -> Iterator[Workplace | None]:
    """Takes up or begins the work of which `out` is the result; yields None where it is done already.

    Args:
      out: a folder that does not exist or is empty. plan: what is to be done, JSON; the same plan resumes.
    Raises: CheckpointError where `out` holds something, another process is at work, the unfinished work has another
      plan, or (from the body) the disk is full.
    """
    work = Workplace(out)
    occupied = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if occupied and not work.folder.exists():
        raise CheckpointError(f"{out}: exists already; a new or an empty folder was wanted")
    try:
        work.folder.mkdir(parents=True, exist_ok=True)
        with _locked(work.folder):
            _same_plan(work, json.loads(json.dumps(plan)))
            if occupied and not work.pack.exists():
                shutil.rmtree(work.folder)
                yield None
                return
            if occupied:
                raise CheckpointError(
                    f"{out}: exists already, though {work.folder} is not finished; remove one of them"
                )
            for folder in (work.pack, work.pieces):
                folder.mkdir(exist_ok=True)
                for leftover in folder.glob(".*.unfinished"):
                    leftover.unlink()
            yield work
    except OSError as error:
        what = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"cannot write: {error.strerror}"
        raise CheckpointError(f"{work.folder}: {what}; finished parts stay there, the same command goes on") from error


def require_room(folder: Path, nbytes: int) -> None:
    """Raises CheckpointError where the disk of `folder`, or of the first of its parents that exists, has less free."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < nbytes:
        raise CheckpointError(f"{folder}: {nbytes:,} bytes are wanted, the disk has {free:,} free")


def _same_plan(work: Workplace, plan: dict) -> None:
    file = work.folder / _PLAN
    if not file.exists():
        write_json(file, plan)
        return
    begun = json.loads(file.read_text("utf-8"))
    differing = [key for key in sorted(begun.keys() | plan.keys()) if begun.get(key) != plan.get(key)]
    if differing:
        key = differing[0]
        raise CheckpointError(
            f"{work.folder}: begun with {key} {begun.get(key)!r}, now {plan.get(key)!r}; repeat the first command, or "
            f"remove that folder"
        )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, which a process loses when it ends, however it ends."""
    with open(folder / _LOCK, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"{folder}: another converter is at work there") from None
        yield


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
