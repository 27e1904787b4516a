"""Host side: what the demo learns: the standard library's modules as found, some of them held out, and talk about them.

Read next: chats.py, batches.py.
"""

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

LEFT_OUT = {"test", "tests", "idle_test", "lib2to3", "site-packages", "__pycache__", "encodings", "pydoc_data"}
"""Folders of tests, of other people's packages, and of tables that are no code."""
HELD_OUT_OF = 16
"""One module in so many is held out, by a checksum of its name."""


@dataclass(frozen=True)
class Module:
    """name: path below the library's root, with slashes. text: its source."""

    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Modules in the order of their names: those to learn from, and those held out."""

    train: tuple[Module, ...]
    held_out: tuple[Module, ...]


def library(root: Path | None = None) -> Corpus:
    """The standard library of the Python that runs this; the same Python version gives the same corpus.

    The one module that records how this interpreter was built is left out.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    found = sorted((path.relative_to(root).as_posix(), path) for path in root.rglob("*.py"))
    kept = [
        (name, path) for name, path in found if not LEFT_OUT & set(name.split("/")) and "_sysconfigdata" not in name
    ]
    modules = [Module(name, path.read_text("utf-8", errors="replace")) for name, path in kept]
    held_out = {module.name for module in modules if crc32(module.name.encode()) % HELD_OUT_OF == 0}
    return Corpus(
        train=tuple(module for module in modules if module.name not in held_out),
        held_out=tuple(module for module in modules if module.name in held_out),
    )
