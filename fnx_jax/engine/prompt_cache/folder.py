"""Host side: what a folder of kept states holds when a server starts. Headers and tokens are read, states are not.

Read next: files.py.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fnx_jax.engine.prompt_cache.files import About, ForeignFile, StateFileError, read_about

STALE_S = 3600.0
"""An unfinished file this old was left by a process that died."""


@dataclass
class Found:
    """states: those of the fingerprint that was asked for, the longest unused first. foreign, broken: other files."""

    states: list[tuple[Path, About]] = field(default_factory=list)
    foreign: list[StateFileError] = field(default_factory=list)
    broken: list[StateFileError] = field(default_factory=list)

    def faults(self) -> Iterator[str]:
        """One line for each kind of file that is of no use."""
        for errors, says in (
            (self.foreign, "are kept states of another checkpoint, of other settings or of another program"),
            (self.broken, "are no kept states, or are broken"),
        ):
            if errors:
                yield f"{len(errors)} files {says}, and are left alone; one is {errors[0]}"


def look_through(folder: Path, fingerprint: str) -> Found:
    """Finds the kept states of a fingerprint, and removes what was left unfinished. Raises OSError."""
    found = Found()
    for path in _by_age(folder):
        if path.name.endswith(".unfinished"):
            _remove_if_stale(path)
            continue
        try:
            found.states.append((path, read_about(path, fingerprint)))
        except ForeignFile as error:
            found.foreign.append(error)
        except StateFileError as error:
            found.broken.append(error)
    return found


def _by_age(folder: Path) -> list[Path]:
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process has removed it
            if path.is_file():
                found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found)]


def _remove_if_stale(path: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > STALE_S:
            path.unlink()
