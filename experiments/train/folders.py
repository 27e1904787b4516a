"""Host side: files that are never half written, folders in which one process works at a time. Read next: phase.py."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from experiments.train.errors import TrainingError


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents where they are missing. Raises TrainingError where one of them is a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise TrainingError(f"{folder}: a folder was wanted: {error.strerror}") from error


def write_whole(file: Path, text: str) -> None:
    """Writes UTF-8 text under another name, which then takes the place of the file."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.write_text(text, "utf-8")
    unfinished.replace(file)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds a folder, which must exist, until the body or the process ends. Raises TrainingError where another does."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainingError(f"{folder}: another process is at work there") from None
        yield
