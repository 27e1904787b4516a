"""Receipts are complete, finite, never overwritten and never changed; every citation names one."""

import json
import re
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from checkpoints.commands import UsageError
from experiments import receipts
from experiments.receipts import Receipt, ReceiptError, make_receipt, note_origin, read_receipt, slug, write_receipt

ROOT = Path(__file__).parents[2]
CITED = re.compile(r"\[`([A-Za-z0-9_-]+-[0-9a-f]{8})`\]")
DOCUMENTS = sorted(path for path in ROOT.glob("**/*.md") if not {".venv", "results"} & set(path.parts))


SAMPLE = Receipt(
    what="sample",
    commit="0" * 40,
    dirty=False,
    fingerprint={},
    versions={"jax": "1"},
    device="a device",
    command="sample --fast",
    started="2030-01-01T00:00:00+00:00",
    figures={"ratio": 1.5},
    hashes={},
    margins={"top2": 0.25},
)


def a_receipt(**changes) -> Receipt:
    return replace(SAMPLE, **changes)


def test_what_is_written_is_read(tmp_path):
    receipt = a_receipt(hashes={"tokens": "ab"})
    path = write_receipt(receipt, tmp_path)
    assert read_receipt(path) == receipt
    assert re.fullmatch(r"sample-[0-9a-f]{8}\.json", path.name)
    assert list(json.loads(path.read_text())) == sorted(asdict(receipt))


@pytest.fixture
def source(monkeypatch) -> list[tuple[str, bool]]:
    """What git says of the source; the last entry holds."""
    states = [("1" * 40, False)]
    monkeypatch.setattr(receipts, "source_state", lambda folder: states[-1])
    return states


def test_versions_command_and_time_are_found_out(source, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/__main__.py", "--fast", "--name=a b"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name="experiments.sample.__main__"))
    receipt = make_receipt(note_origin(), "sample", "a device", {"ratio": 1.5})
    assert (receipt.commit, receipt.dirty) == ("1" * 40, False)
    assert set(receipt.versions) == {"jax", "jaxlib", "numpy", "python"}
    assert receipt.command == "python -m experiments.sample --fast '--name=a b'"
    assert note_origin(["sample", "--slow"]).command == "sample --slow"


def test_a_receipt_names_the_beginning_of_its_run(source):
    origin = replace(note_origin(), started=datetime(2030, 1, 1, tzinfo=UTC))
    source.append(("1" * 40, True))
    receipt = make_receipt(origin, "sample", "a device", {"ratio": 1.5})
    assert receipt.started == "2030-01-01T00:00:00+00:00" and receipt.dirty


def test_a_commit_during_the_run_is_not_credited_with_its_figures(source):
    origin = note_origin()
    source.append(("2" * 40, False))
    with pytest.raises(ReceiptError, match="from commit 1+ to 2+ during the run"):
        make_receipt(origin, "sample", "a device", {"ratio": 1.5})
    assert issubclass(ReceiptError, UsageError)  # commands end with a message


@pytest.mark.parametrize("text", ["Qwen3.8-Flash-Next-exl3", "a b/c", "é"])
def test_any_text_can_be_part_of_a_name(text, tmp_path):
    assert write_receipt(a_receipt(what=f"prove-{slug(text)}"), tmp_path).is_file()


def test_the_state_of_the_source(tmp_path):
    with pytest.raises(ReceiptError, match="commit of the source"):
        receipts.source_state(tmp_path / "nowhere")
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "a"], [*name, "commit", "-qm", "a"]):
        (tmp_path / "a").write_text("1")
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    commit, dirty = receipts.source_state(tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", commit) and not dirty
    (tmp_path / "a").write_text("2")
    assert receipts.source_state(tmp_path) == (commit, True)


def test_a_receipt_is_not_overwritten(tmp_path):
    write_receipt(receipt := a_receipt(), tmp_path)
    with pytest.raises(FileExistsError):
        write_receipt(receipt, tmp_path)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"figures": {"ratio": float("nan")}}, "sample.figures.ratio is nan"),
        ({"figures": {"ratios": [1.0, float("inf")]}}, r"ratios\[1\] is inf"),
        ({"figures": {}}, "figures is empty"),
        ({"figures": {"path": Path(".")}}, "not JSON serializable"),
        ({"what": "a b/c"}, "what='a b/c'"),
        ({"what": "a.b"}, "what='a.b'"),
        ({"what": "é"}, "what='é'"),
        ({"dirty": "no"}, "dirty is str"),
    ],
)
def test_a_bad_receipt_is_refused_and_leaves_no_file(changes, word, tmp_path):
    with pytest.raises(ReceiptError, match=word):
        write_receipt(a_receipt(**changes), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("1.5", "1.4", "belongs to"),
        ("1.5", "NaN", "NaN"),
        ('"device"', '"machine"', "device, machine"),
        ("{", "", "sample-"),
    ],
)
def test_a_changed_file_is_found_out(old, new, word, tmp_path):
    path = write_receipt(a_receipt(), tmp_path)
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ReceiptError, match=word):
        read_receipt(path)


def test_every_receipt_here_is_one():
    for path in receipts.RESULTS.glob("*.json"):
        read_receipt(path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_cited_receipt_exists(document):
    missing = [name for name in cited(document.read_text("utf-8")) if not (receipts.RESULTS / f"{name}.json").is_file()]
    assert not missing


def cited(text: str) -> list[str]:
    """Names of receipts in a document."""
    return CITED.findall(text)


def test_citations_are_found():
    assert cited("1.07 times [`exactness-0a1b2c3d`], see `make lint`") == ["exactness-0a1b2c3d"]


def uncited(table: str) -> list[str]:
    """Cells of the column "newest number" that hold a figure and no receipt."""
    cells = [line.strip().strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    column = [cell.strip() for cell in cells[0]].index("newest number")
    return [
        row[column].strip()
        for row in cells[2:]
        if re.search(r"\d", CITED.sub("", row[column])) and not cited(row[column])
    ]


def test_newest_numbers_are_cited():
    text = (ROOT / "experiments" / "README.md").read_text("utf-8")
    assert text.count("newest number") == 1 and not uncited(text)
    head = "| command | newest number |\n| --- | --- |\n"
    assert uncited(head + "| `a --n=3` | 67 % |\n| `b` | 1 [`b-0a1b2c3d`] |\n| `c` | - |\n") == ["67 %"]
