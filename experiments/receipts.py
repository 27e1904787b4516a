"""Host side: receipts. A figure that is quoted anywhere stands in one: what was measured, of which source, on what.

Receipts lie in experiments/results as sorted JSON and are never overwritten. results/README.md says how to cite one.
"""

import hashlib
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from checkpoints.commands import UsageError, program_name

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("jax", "jaxlib", "numpy")


class ReceiptError(UsageError):
    """A receipt that cannot be written, or a file that is none; the message names it."""


@dataclass(frozen=True)
class Receipt:
    """What one run measured.

    what: a short name of letters, digits, - and _. commit: of the source; dirty: whether the tree had changes.
    fingerprint: what bits depend on (see fnx_jax.backend), empty where no model ran. versions: of packages and Python.
    device: in words. command: as typed. started: UTC, ISO 8601. figures: by name, with units in the names.
    hashes: digests of inputs and outputs. margins: distances to the next decision.
    """

    what: str
    commit: str
    dirty: bool
    fingerprint: Mapping[str, Any]
    versions: Mapping[str, str]
    device: str
    command: str
    started: str
    figures: Mapping[str, Any]
    hashes: Mapping[str, str]
    margins: Mapping[str, float]


@dataclass(frozen=True)
class Origin:
    """Where the figures of a run come from, noted before its work. Fields as of Receipt; started: UTC."""

    commit: str
    dirty: bool
    command: str
    started: datetime


def note_origin(command: Sequence[str] | None = None) -> Origin:
    """The origin of a run that begins now. command: words, where others than those typed make the same figures.

    Raises: ReceiptError where the source is in no git repository.
    """
    commit, dirty = source_state(Path(__file__).parent)
    typed = ["python", "-m", program_name(), *sys.argv[1:]]
    return Origin(commit, dirty, shlex.join(typed if command is None else command), datetime.now(UTC))


def make_receipt(
    origin: Origin,
    what: str,
    device: str,
    figures: Mapping[str, Any],
    *,
    fingerprint: Mapping[str, Any] | None = None,
    hashes: Mapping[str, str] | None = None,
    margins: Mapping[str, float] | None = None,
) -> Receipt:
    """A receipt of the run that began at `origin`; a tree that has changes now counts as dirty.

    Raises: ReceiptError where the source is at another commit by now: either may have computed the figures.
    """
    commit, dirty = source_state(Path(__file__).parent)
    if commit != origin.commit:
        raise ReceiptError(f"{what}: the source went from commit {origin.commit} to {commit} during the run")
    return Receipt(
        what=what,
        commit=commit,
        dirty=origin.dirty or dirty,
        fingerprint=dict(fingerprint or {}),
        versions={name: metadata.version(name) for name in PACKAGES} | {"python": sys.version.split()[0]},
        device=device,
        command=origin.command,
        started=origin.started.isoformat(timespec="seconds"),
        figures=dict(figures),
        hashes=dict(hashes or {}),
        margins=dict(margins or {}),
    )


def slug(text: str) -> str:
    """Makes a name of anything: what may not stand in one becomes a dash."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")


def source_state(folder: Path) -> tuple[str, bool]:
    """The commit that `folder` is at, and whether tracked files differ from it. Raises ReceiptError without git."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return commit, bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError) as error:
        raise ReceiptError(f"{folder}: the commit of the source is unknown: {error}") from error


def write_receipt(receipt: Receipt, folder: Path = RESULTS) -> Path:
    """Writes <what>-<digest>.json and returns its path.

    Raises: ReceiptError where a field is wrong or not finite; FileExistsError where the same receipt is there.
    """
    text = _text(receipt)
    check(json.loads(text), receipt.what)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    path = folder / f"{receipt.what}-{digest}.json"
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return path


def read_receipt(path: Path) -> Receipt:
    """Reads one. Raises ReceiptError where the file is no receipt, or was changed after it was written."""
    text = path.read_text(encoding="utf-8")
    try:
        value = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise ReceiptError(f"{path.name}: {error}") from error
    check(value, path.name)
    receipt = Receipt(**value)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    if path.name != f"{receipt.what}-{digest}.json":
        raise ReceiptError(f"{path.name}: the file's content belongs to {receipt.what}-{digest}.json")
    return receipt


def check(value: Any, name: str) -> None:
    """Raises ReceiptError, naming the field, unless `value` is a receipt's JSON object."""
    if not isinstance(value, dict):
        raise ReceiptError(f"{name}: an object was wanted")
    wanted = {field.name for field in fields(Receipt)}
    if set(value) != wanted:
        raise ReceiptError(f"{name}: fields {', '.join(sorted(wanted ^ set(value)))} are missing or unknown")
    for field, kind in _KINDS.items():
        if not isinstance(value[field], kind):
            raise ReceiptError(f"{name}: {field} is {type(value[field]).__name__}, {kind.__name__} was wanted")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", value["what"]):
        raise ReceiptError(f"{name}: what={value['what']!r}, letters, digits, - and _ were wanted")
    if not value["figures"]:
        raise ReceiptError(f"{name}: figures is empty")


_KINDS = {"dirty": bool} | dict.fromkeys(("what", "commit", "device", "command", "started"), str)
_KINDS |= dict.fromkeys(("fingerprint", "versions", "figures", "hashes", "margins"), dict)


def _text(receipt: Receipt) -> str:
    _finite(asdict(receipt), receipt.what)
    try:
        return json.dumps(asdict(receipt), sort_keys=True, indent=1, allow_nan=False) + "\n"
    except TypeError as error:
        raise ReceiptError(f"{receipt.what}: {error}") from error


def _finite(value: Any, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ReceiptError(f"{where} is {value}, a finite number was wanted")
    if isinstance(value, Mapping):
        for key, part in value.items():
            _finite(part, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            _finite(part, f"{where}[{i}]")


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
