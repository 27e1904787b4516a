"""What ranks compare names everything that their bits and their programs depend on."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import fnx_jax
from checkpoints.commands import DEMO
from checkpoints.errors import CheckpointError
from fnx_jax.serve.load import ModelSettings
from fnx_jax.serve.ranks.facts import facts, source_digest

SETTINGS = ModelSettings(DEMO)


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {name for name in one if one[name] != other[name]}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("lanes", dict(lanes=5)),
        ("context", dict(context=100)),
        ("dtype", dict(dtype="float32")),
        ("drafts", dict(drafts=False)),
        ("mtp_drafts", dict(mtp_drafts=3)),
        ("draft_vocabulary", dict(draft_vocabulary=None)),
        ("self_test", dict(self_test=False)),
    ],
)
def test_every_setting_that_shapes_programs_is_a_fact(name, change):
    assert differing(facts(SETTINGS), facts(replace(SETTINGS, **change))) == {name}


def test_backend_flags_are_a_fact(monkeypatch):
    before = facts(SETTINGS)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
    assert differing(before, facts(SETTINGS)) == {"flags"}


def test_source_is_a_fact_wherever_it_lies(tmp_path, monkeypatch):
    package = Path(fnx_jax.__file__).parent
    copy = Path(shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns("__pycache__")))
    assert source_digest([copy]) == source_digest([package])
    before = facts(SETTINGS)
    monkeypatch.setattr(fnx_jax, "__path__", [str(copy)])
    assert facts(SETTINGS) == before
    (copy / "lanes" / "rows.py").write_text("# another program\n")
    assert differing(before, facts(SETTINGS)) == {"source"}


@pytest.mark.parametrize("change", [lambda file: file.rename(file.with_name("b.py")), Path.unlink])
def test_every_file_of_the_source_counts(tmp_path, change):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.py").touch()
    before = source_digest([tmp_path])
    change(tmp_path / "deep" / "a.py")
    assert source_digest([tmp_path]) != before


def test_files_are_facts_and_their_folder_is_none(tmp_path):
    copy = replace(SETTINGS, folder=tmp_path / "copy")
    shutil.copytree(DEMO, copy.folder)
    assert not differing(facts(SETTINGS), facts(copy))
    (copy.folder / "tokenizer.json").unlink()
    (copy.folder / "ngram_embedding.safetensors").unlink()
    assert differing(facts(SETTINGS), facts(copy)) == {"tokenizer.json", "checkpoint_digest"}


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError):
        facts(replace(SETTINGS, folder=tmp_path))
