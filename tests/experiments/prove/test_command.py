"""Flags and exit codes of the command."""

from dataclasses import dataclass

import pytest

from checkpoints.commands import UsageError, execute
from checkpoints.errors import CheckpointError
from experiments import receipts
from experiments.prove import __main__ as command
from experiments.prove import library, show_controls
from experiments.prove.claims import Tally
from experiments.prove.report import Proof


def run(*arguments):
    return execute(command.main, command.FLAGS, ["experiments.prove", *arguments])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["folder"], "--model"),
        (["--tp=3"], "powers of two"),
        (["--tp=two"], "numbers"),
        (["--quick", "--full"], "exclude"),
        (["--url=http://x", "--controls"], "--url"),
        (["--receipt", "--url=http://x"], "--receipt"),
        (["--json=/no/such/folder/x.json"], "no such folder"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, word, capsys):
    assert run(*arguments) == 2
    assert word in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_a_checkpoint_error(capsys):
    assert run("--model=/no/such/pack") == 3
    assert "/no/such/pack" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code"), [(MemoryError("no room"), 4), (RuntimeError("no device"), 5), (UsageError("--tp"), 2)]
)
def test_what_stops_a_proof_is_an_exit_code(raised, code, monkeypatch):
    def prove(*arguments):
        raise raised

    monkeypatch.setattr("experiments.prove.library.prove_library", prove)
    assert run() == code


@pytest.mark.parametrize(("unequal", "code"), [(0, 0), (1, 1)])
def test_red_and_green_are_exit_codes(unequal, code, monkeypatch, tmp_path):
    asked = []

    def prove(*arguments):
        asked.append(arguments)
        return Proof("x", [Tally("solo", 3, 3 - unequal, unequal)], [], [], 1.0, {})

    monkeypatch.setattr("experiments.prove.library.prove_library", prove)
    assert run("--tp=4,2", "--preset=origin", f"--json={tmp_path / 'x.json'}") == code
    assert asked[0][2:4] == ("origin", [1, 2, 4]) and (tmp_path / "x.json").is_file()


@pytest.fixture
def proved(monkeypatch, tmp_path) -> list[str]:
    """A proof of a model whose name has a dot; receipts go to `results`. What was done, in order."""
    done = []

    def prove(*arguments):
        done.append("proved")
        return Proof("packs/Flash-3.8", [Tally("solo", 3, 3)], [], [], 1.0, {})

    def source_state(folder):
        done.append("looked at the source")
        return "1" * 40, False

    monkeypatch.setattr("experiments.prove.library.prove_library", prove)
    monkeypatch.setattr(receipts, "source_state", source_state)
    monkeypatch.setattr(command, "write_receipt", lambda receipt: receipts.write_receipt(receipt, tmp_path / "results"))
    return done


looked = receipts.source_state


def test_a_receipt_is_of_the_source_that_the_proof_began_with(proved, tmp_path):
    assert run("--receipt") == 0
    assert proved == ["looked at the source", "proved", "looked at the source"]
    (path,) = (tmp_path / "results").iterdir()
    assert path.name.startswith("prove-Flash-3-8-")


def test_without_a_repository_a_receipt_is_refused_before_the_proof(monkeypatch, proved, tmp_path, capsys):
    monkeypatch.setattr(receipts, "source_state", lambda folder: looked(tmp_path / "nowhere"))
    assert run("--receipt") == 2
    assert "commit of the source is unknown" in capsys.readouterr().err and not proved


@pytest.mark.parametrize(("name", "asked", "word"), [("base", [1, 8], "has 4"), ("base", [3], "power of two")])
def test_devices_that_cannot_be_had_are_refused_before_anything_is_loaded(name, asked, word, golden):
    with pytest.raises(library.NotLoaded, match=word):
        library.device_counts(str(golden / name), asked)


def test_the_devices_that_there_are(golden, tmp_path):
    assert library.device_counts(str(golden / "base"), None) == [1, 2, 4]
    assert library.device_counts(str(golden / "base"), [1, 2]) == [1, 2]
    with pytest.raises(CheckpointError):
        library.device_counts(str(tmp_path), None)


@dataclass(frozen=True)
class Outcome:
    red: bool
    evidence: str = "why"


@dataclass(frozen=True)
class Control:
    name: str
    outcome: Outcome | Exception
    rule: str = "rule 2"
    breaks: str = "adds in another order"

    def run(self):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize(
    ("outcomes", "red"),
    [
        ([Outcome(True), Outcome(True)], True),
        ([Outcome(True), Outcome(False)], False),
        ([Outcome(True), ValueError("broke down")], False),
        ([], False),
    ],
)
def test_controls_pass_only_where_every_one_is_red(outcomes, red):
    lines = []
    assert show_controls.show([Control(f"c{i}", outcome) for i, outcome in enumerate(outcomes)], lines.append) is red
    assert len(lines) == len(outcomes) + 1


def test_without_controls_the_flag_is_refused(monkeypatch):
    monkeypatch.setattr(show_controls, "PACKAGE", "experiments.no_controls")
    with pytest.raises(UsageError, match="experiments.no_controls"):
        show_controls.all_controls()
