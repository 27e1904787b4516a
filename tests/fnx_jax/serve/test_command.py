"""python -m fnx_jax.serve: what it refuses before a model is read, by which code, and under which name."""

import json
import math
import shutil
import subprocess
import sys

import pytest

from checkpoints.commands import execute
from fnx_jax.serve import __main__ as command
from fnx_jax.serve.assets import AssetError
from fnx_jax.serve.cache_flags import state_folder
from fnx_jax.serve.progress import Progress
from fnx_jax.serve.runner import StartUp


def refused(capsys, *flags: str) -> str:
    assert execute(command.main, command.FLAGS, ["serve", *flags, "--model=/nonexistent"]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("key", ["", "  "])
def test_an_empty_key_is_refused(capsys, key):
    assert refused(capsys, "--api_key=good", f"--api_key={key}").startswith("serve: --api_key: a key is empty")


@pytest.mark.parametrize("content", [b"\n \n", b"\xff\xfe"])
def test_a_key_file_without_readable_keys_is_refused(capsys, tmp_path, content):
    (tmp_path / "keys").write_bytes(content)
    assert f"--api_key_file: {tmp_path / 'keys'}" in refused(capsys, f"--api_key_file={tmp_path / 'keys'}")


def test_keys_come_from_flags_and_file(tmp_path):
    (tmp_path / "keys").write_text("two\n\n three \n")
    flags = ["--api_key=one", f"--api_key_file={tmp_path / 'keys'}"]
    assert execute(lambda rest: None, command.FLAGS, ["serve", *flags]) == 0
    assert command.settings().api_keys == ("one", "two", "three")


@pytest.mark.parametrize("flag", ["--max_rows=17", "--tp=3"])
def test_sizes_that_cannot_be_are_refused_before_anything_starts(capsys, flag):
    assert execute(command.main, command.FLAGS, ["serve", flag]) == 2
    assert capsys.readouterr().err.startswith(f"serve: {flag}: a ")


@pytest.mark.parametrize(
    "flag", ["--draft_vocabulary=some", "--draft_vocabulary=0", "--mtp_drafts=16", "--mtp_drafts=0"]
)
def test_drafts_that_cannot_be_are_refused(capsys, flag):
    assert execute(command.main, command.FLAGS, ["serve", flag]) == 2
    assert flag.split("=")[0] in capsys.readouterr().err


def test_drafts_are_chosen_by_flags():
    flags = ["--no-drafts", "--mtp-drafts=4", "--draft-vocabulary=all"]
    assert execute(lambda rest: None, command.FLAGS, ["serve", *flags]) == 0
    chosen = command.model_settings()
    assert (chosen.drafts, chosen.mtp_drafts, chosen.draft_vocabulary) == (False, 4, None)
    assert execute(lambda rest: None, command.FLAGS, ["serve"]) == 0
    assert (command.model_settings().drafts, command.model_settings().draft_vocabulary) == (True, 622)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--prompt_cache_gib=nan"], "--prompt_cache_gib=nan: a finite number was wanted"),
        (["--prompt_cache_host_gib=inf"], "--prompt_cache_host_gib=inf: a finite number was wanted"),
        (["--prompt_cache_disk_gib=1"], "--prompt_cache_disk_gib and --prompt_cache_dir: each needs the other"),
        (
            ["--prompt_cache_gib=0", "--prompt_cache_host_gib=1"],
            "--prompt_cache_host_gib: --prompt_cache_gib=0 keeps no states",
        ),
        (["--prompt_cache_dir=/tmp"], "--prompt_cache_disk_gib and --prompt_cache_dir: each needs the other"),
        (["--prompt_cache_disk_gib=1", "--prompt_cache_dir=/dev/null/in"], "--prompt_cache_dir=/dev/null/in: "),
        (["--prompt_cache_disk_gib=1", "--prompt_cache_dir=/proc"], "--prompt_cache_dir=/proc: "),
        (["--prompt_cache_disk_gib=1", f"--prompt_cache_dir={command.DEMO}/in"], "lies in the checkpoint's folder"),
        (
            ["--prompt_cache_disk_gib=1", "--prompt_cache_dir=/tmp", "--prompt_cache_gib=0"],
            "--prompt_cache_gib=0 keeps",
        ),
        (["--coordinator=localhost:4000", "--ranks=2", "--prompt_cache_host_gib=1"], "--prompt_cache_host_gib: kept"),
        (["--coordinator=localhost:4000", "--ranks=2", "--prompt_cache_disk_gib=1"], "--prompt_cache_disk_gib: kept"),
    ],
)
def test_places_for_kept_states_that_cannot_be_are_refused(capsys, flags, says):
    assert execute(command.main, command.FLAGS, ["serve", *flags]) == 2
    assert says in capsys.readouterr().err


def test_the_folder_of_kept_states_is_made_for_its_owner_alone(tmp_path):
    flags = ["--prompt-cache-disk-gib=0.5", f"--prompt-cache-dir={tmp_path}/a/b"]
    assert execute(lambda rest: None, command.FLAGS, ["serve", *flags]) == 0
    assert state_folder(command.FLAGS) == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700 and not list((tmp_path / "a" / "b").iterdir())
    assert execute(lambda rest: None, command.FLAGS, ["serve"]) == 0
    assert state_folder(command.FLAGS) is None


def test_an_endless_drain_is_refused(capsys):
    assert "--drain_seconds" in refused(capsys, f"--drain_seconds={math.inf}")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--ranks=2"], "need --coordinator"),
        (["--rank=1"], "need --coordinator"),
        (["--coordinator=localhost:4000"], "serve: --ranks=1:"),
        (["--coordinator=localhost:4000", "--ranks=2", "--rank=2"], "serve: --rank=2:"),
        (["--coordinator=localhost", "--ranks=2"], "HOST:PORT was wanted"),
        (["--coordinator=localhost:4000", "--ranks=2", "--tp=4"], "--tp=4"),
        (["--coordinator=localhost:4000", "--ranks=2", "--rank-token-file=/nonexistent"], "--rank_token_file"),
        (["--coordinator=localhost:4000", "--ranks=2", "--rank-token-file=/dev/null"], "holds no token"),
    ],
)
def test_a_process_without_a_place_among_ranks_is_refused(capsys, flags, says):
    assert execute(command.main, command.FLAGS, ["serve", *flags]) == 2
    assert says in capsys.readouterr().err


def test_bad_sampling_defaults_are_found_before_the_weights_are_read(tmp_path):
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(command.DEMO / name, tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": "hot"}))
    assert execute(lambda rest: None, command.FLAGS, ["serve", f"--model={tmp_path}"]) == 0
    with pytest.raises(AssetError, match=r"generation_config\.json: .*temperature must be a number"):
        command.load_model(StartUp(Progress(quiet=True), lambda record: None), command.model_settings())


def test_the_program_goes_by_the_name_that_was_typed():
    ended = subprocess.run([sys.executable, "-m", "fnx_jax.serve", "--lanes=0"], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.partition(":")[0]) == (2, "fnx_jax.serve")
