"""python -m fnx_jax.generate: what it refuses, and by which code."""

from checkpoints.commands import execute
from fnx_jax import generate


def test_a_folder_without_a_tokenizer_is_a_checkpoint_fault(tmp_path, capsys):
    assert execute(generate.main, generate.FLAGS, ["generate", f"--model={tmp_path}", "text"]) == 3
    assert capsys.readouterr().err == f"generate: {tmp_path / 'tokenizer.json'}: No such file or directory\n"
