"""Commands read every spelling of a flag and end with the code that says what went wrong."""

import subprocess
import sys

import pytest
from absl import flags

from checkpoints import CheckpointError
from checkpoints.commands import UsageError, execute, normalise, one_path


@pytest.fixture
def values():
    found = flags.FlagValues()
    flags.DEFINE_bool("drafts", True, "", flag_values=found)
    flags.DEFINE_bool("no_limit", False, "", flag_values=found)
    flags.DEFINE_bool("log_json", False, "", flag_values=found)
    flags.DEFINE_string("served_model_name", "", "", flag_values=found)
    flags.DEFINE_integer("mtp_drafts", 1, "", flag_values=found)
    return found


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["--no-drafts"], ["--nodrafts"]),
        (["--no_drafts"], ["--nodrafts"]),
        (["--nodrafts"], ["--nodrafts"]),
        (["--log-json"], ["--log_json"]),
        (["--no-log-json"], ["--nolog_json"]),
        (["--no-limit"], ["--no_limit"]),
        (["--mtp-drafts=2"], ["--mtp_drafts=2"]),
        (["--served-model-name=a-b"], ["--served_model_name=a-b"]),
        (["--served-model-name", "--no-drafts"], ["--served_model_name", "--no-drafts"]),
        (["--log-json", "--no-drafts"], ["--log_json", "--nodrafts"]),
        (["a-path", "-", "--", "--no-drafts"], ["a-path", "-", "--", "--no-drafts"]),
        (["--no-mtp-drafts"], ["--no_mtp_drafts"]),
    ],
)
def test_every_spelling_becomes_the_one_that_is_read(values, argv, wanted):
    assert normalise(argv, values) == wanted


def test_flag_files_may_use_every_spelling(values, tmp_path):
    (tmp_path / "flags").write_text("# the evening's settings\n--no-drafts\n--served-model-name=my model\n")
    assert normalise([f"--flagfile={tmp_path / 'flags'}"], values) == ["--nodrafts", "--served_model_name=my model"]


def test_flags_after_arguments_are_read(values):
    seen: list[list[str]] = []
    assert execute(seen.append, values, ["p", "one", "--no-drafts", "two", "--mtp-drafts", "3"]) == 0
    assert seen == [["one", "two"]] and not values["drafts"].value and values["mtp_drafts"].value == 3


def test_unknown_flag_ends_with_2_and_the_nearest_name(values, capsys):
    assert execute(lambda rest: None, values, ["p", "--drafs"]) == 2
    assert "drafs" in (error := capsys.readouterr().err) and "Did you mean: drafts" in error


def test_bad_value_and_absent_flag_file_end_with_2(values, tmp_path, capsys):
    assert execute(lambda rest: None, values, ["p", "--mtp-drafts=x"]) == 2
    assert execute(lambda rest: None, values, ["p", f"--flagfile={tmp_path / 'none'}"]) == 2
    assert "mtp_drafts" in capsys.readouterr().err


def test_value_for_a_negation_and_flag_file_without_text_end_with_2(values, tmp_path, capsys):
    (tmp_path / "flags").write_bytes(b"\xff\xfe")
    assert execute(lambda rest: None, values, ["p", "--no-drafts=3"]) == 2
    assert "p: --nodrafts=3 does not take an argument" in capsys.readouterr().err
    assert execute(lambda rest: None, values, ["p", f"--flagfile={tmp_path / 'flags'}"]) == 2


@pytest.mark.parametrize(("error", "code"), [(UsageError("usage"), 2), (CheckpointError("file: tensor"), 3)])
def test_errors_end_with_their_code_and_their_message(values, capsys, error, code):
    def fail(rest):
        raise error

    assert execute(fail, values, ["prog"]) == code
    assert capsys.readouterr().err.startswith(f"prog: {error}")


def test_bugs_are_not_hidden(values):
    def fail(rest):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        execute(fail, values, ["prog"])


def test_code_that_a_command_returns_is_its_own(values):
    assert execute(lambda rest: 4, values, ["p"]) == 4


def test_help_names_the_flags_and_ends_with_0(values, capsys):
    assert execute(lambda rest: 1, values, ["p", "--help"], doc="What it does.") == 0
    text = capsys.readouterr().out
    assert text.startswith("What it does.") and "served_model_name" in text and "flagfile" in text


def test_one_path_says_how_many_there_were():
    assert one_path(["a"], "folder") == "a"
    with pytest.raises(UsageError, match="one folder was wanted, found 0$"):
        one_path([], "folder")
    with pytest.raises(UsageError, match="found 2: a b"):
        one_path(["a", "b"], "folder")


def test_module_run_as_a_program_ends_with_its_code(golden):
    def ended(*argv):
        return subprocess.run([sys.executable, "-m", *argv], capture_output=True, text=True, check=False)

    good = ended("checkpoints.verify", str(golden / "official_names"))
    assert good.returncode == 0 and "good" in good.stdout
    bad = ended("checkpoints.verify", str(golden / "nowhere"))
    assert bad.returncode == 3 and bad.stderr.startswith("checkpoints.verify: ")
