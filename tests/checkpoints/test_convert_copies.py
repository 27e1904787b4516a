"""Repacked and dequantised copies hold what their source holds, and no half result is ever taken for one."""

import errno
import json
import os
import shutil

import numpy as np
import pytest

from checkpoints import CheckpointError, convert, open_store
from checkpoints import write as write_module
from checkpoints.commands import DEMO, EXIT_CHECKPOINT, EXIT_USAGE, execute
from checkpoints.converter import repack as repack_module
from checkpoints.converter import workplace
from checkpoints.converter.workplace import working
from checkpoints.inventory import check
from checkpoints.ngram import open_ngram_table
from checkpoints.store import ALIGNMENT
from tests.checkpoints.tiny_packs import change, first_layers, make_pack, put
from tests.reference import numpy_exl3 as oracle

LAYER = "model.language_model.layers.0."
TABLE = "model.language_model.layers.1.ple.ple_embedding."


def run(*argv: object) -> int:
    return execute(convert.main, convert.FLAGS, ["checkpoints.convert", *map(str, argv)])


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """Two EXL3 layers with an n-gram table."""
    return first_layers(tmp_path_factory.mktemp("pack") / "two")


@pytest.fixture(scope="module")
def plain(pack):
    """The same, dequantised to float32."""
    out = pack.parent / "plain"
    assert run(pack, out, "--dequantize", "--dtype=F32") == 0
    return out


def test_repacked_tensors_are_the_same_and_aligned(tmp_path, capsys):
    assert run(DEMO, tmp_path / "out", "--repack") == 0
    assert "every one as in" in capsys.readouterr().out
    with open_store(DEMO) as source, open_store(tmp_path / "out") as copy:
        assert source.names() == copy.names() and source.config == copy.config
        for name in source.names():
            info = copy.info(name)
            assert info.dtype == source.info(name).dtype and np.array_equal(source.read(name), copy.read(name))
            assert info.nbytes % ALIGNMENT or info.start % ALIGNMENT == 0
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (DEMO / "tokenizer.json").read_bytes()
    assert not (tmp_path / "out.unfinished").exists()


def test_byte_that_differs_from_the_source_is_noticed(tmp_path, monkeypatch, capsys):
    def spoiled(store, info, advance):
        values = store.read(info.name)
        if info.name == "lm_head.suh":
            values.view(np.uint16)[3] ^= 1
        yield values

    monkeypatch.setattr(repack_module, "_copied", spoiled)
    assert run(make_pack(tmp_path / "pack"), tmp_path / "out", "--repack") == EXIT_CHECKPOINT
    assert "lm_head.suh" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_dequantised_layers_are_those_that_the_independent_reader_spells(pack, plain):
    with open_store(pack) as source, open_store(plain) as out:
        assert "quantization_config" not in (out.config or {})
        for name in (f"{LAYER}linear_attn.in_proj_qkv", f"{LAYER}mlp.shared_expert.down_proj", "lm_head"):
            arrays = {f"w.{part}": source.read(f"{name}.{part}") for part in ("trellis", "suh", "svh", "mul1")}
            wanted = oracle.layer_matrix(arrays, "w").T
            np.testing.assert_allclose(out.read(f"{name}.weight"), wanted, atol=1e-5 * np.abs(wanted).max())
        arrays = {
            f"w.{part}": source.read(f"{LAYER}mlp.experts.3.up_proj.{part}")
            for part in ("trellis", "suh", "svh", "mul1")
        }
        wanted = oracle.layer_matrix(arrays, "w").T
        found = out.read(f"{LAYER}mlp.experts.gate_up_proj")[3, wanted.shape[0] :]
        np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


def test_dequantised_rows_are_those_of_the_pack(pack, plain):
    with open_store(pack) as source, open_store(plain) as out:
        rows = np.arange(0, 33000, 1111)
        wanted = open_ngram_table(source, TABLE).lookup(rows).astype(np.float32)
        assert np.array_equal(open_ngram_table(out, TABLE).lookup(rows), wanted)


def test_dequantised_pack_is_complete_and_of_one_dtype(plain):
    with open_store(plain) as out:
        check(out)
        assert not any(name.endswith(".trellis") for name in out.names())
        assert {out.info(name).dtype for name in out.names()} == {"F32", "I64"}


@pytest.mark.parametrize("case", ["base", "official_names"])
def test_plain_source_of_either_naming_is_dequantised_to_itself(golden, case, tmp_path):
    assert run(golden / case, tmp_path / "out", "--dequantize") == 0
    with open_store(golden / case) as source, open_store(tmp_path / "out") as out:
        assert source.names() == out.names()
        assert all(np.array_equal(source.read(name), out.read(name)) for name in source.names())


def test_bias_is_refused(tmp_path, capsys):
    pack = make_pack(tmp_path / "pack")
    put(pack, f"{LAYER}linear_attn.out_proj.bias", np.ones(128, np.float16))
    assert run(pack, tmp_path / "out", "--dequantize") == EXIT_CHECKPOINT
    assert "out_proj.bias" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_value_too_large_for_the_dtype_is_named(tmp_path, capsys):
    pack = make_pack(tmp_path / "pack")
    put(pack, f"{LAYER}linear_attn.A_log", np.full(2, 1e6, np.float32))
    assert run(pack, tmp_path / "out", "--dequantize", "--dtype=F16") == EXIT_CHECKPOINT
    assert "A_log" in capsys.readouterr().err


def test_killed_run_is_taken_up_where_it_was(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    source, out, written = make_pack(tmp_path / "pack"), tmp_path / "out", []
    real = write_module.os.replace

    def die_at_third(old, new):
        written.append(os.path.basename(new))
        if len(written) == 4:
            raise Killed
        real(old, new)

    monkeypatch.setattr(write_module.os, "replace", die_at_third)
    with pytest.raises(Killed):
        run(source, out, "--repack")
    assert not out.exists() and (tmp_path / "out.unfinished" / "pack").exists()
    with pytest.raises(CheckpointError):
        check(open_store(tmp_path / "out.unfinished" / "pack"))
    (tmp_path / "out.unfinished" / "pack" / ".model-x.unfinished").write_bytes(b"half")
    assert run(source, out, "--repack") == 0
    assert len(written) == len(set(written)) + 1, "finished files are not written again"
    assert not [file for file in os.listdir(out) if file.endswith(".unfinished")]


def test_other_plan_does_not_take_up_the_work(tmp_path):
    out = tmp_path / "out"
    with working(out, {"work": "repack", "bits": 3}):
        pass
    with pytest.raises(CheckpointError, match="begun with bits 3, now 4"), working(out, {"work": "repack", "bits": 4}):
        pass


def test_second_converter_is_refused(tmp_path):
    with working(tmp_path / "out", {}), pytest.raises(CheckpointError, match="another converter"):
        with working(tmp_path / "out", {}):
            pass


def test_result_that_exists_is_left_alone(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("mine")
    assert run(DEMO, tmp_path / "out", "--repack") == EXIT_CHECKPOINT
    assert "exists already" in capsys.readouterr().err and (tmp_path / "out" / "file").read_text() == "mine"


def test_run_killed_after_the_last_rename_counts_as_done(tmp_path):
    out = tmp_path / "out"
    with working(out, {"a": 1}) as work:
        (work.pack / "file").write_text("whole")
        work.pack.rename(out)
    with working(out, {"a": 1}) as work:
        assert work is None
    assert not (tmp_path / "out.unfinished").exists() and (out / "file").read_text() == "whole"


def test_full_disk_is_said_before_and_during_the_work(tmp_path, monkeypatch, capsys):
    usage = shutil._ntuple_diskusage(total=1 << 30, used=1 << 30, free=1000)
    with monkeypatch.context() as patch:
        patch.setattr(workplace.shutil, "disk_usage", lambda _: usage)
        assert run(DEMO, tmp_path / "out", "--repack") == EXIT_CHECKPOINT
    assert "1,000 free" in capsys.readouterr().err

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(write_module, "_write_all", full)
        assert run(DEMO, tmp_path / "out", "--repack") == EXIT_CHECKPOINT
    assert "the disk is full" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "argv",
    [
        ["{demo}", "{out}"],
        ["{demo}", "{out}", "--repack", "--dequantize"],
        ["{demo}", "--repack"],
        ["{demo}/config.json", "{out}", "--repack"],
        ["{demo}", "{demo}/inside", "--repack"],
    ],
)
def test_arguments_without_sense_are_refused(tmp_path, argv):
    assert run(*(part.format(demo=DEMO, out=tmp_path / "out") for part in argv)) == EXIT_USAGE
    assert not list(tmp_path.iterdir())


def test_missing_tensor_is_named(tmp_path, capsys):
    pack = make_pack(tmp_path / "pack")
    change(pack, lambda tensors: tensors.pop(f"{LAYER}mlp.gate.weight"), f"{LAYER}mlp.gate.weight")
    assert run(pack, tmp_path / "out", "--dequantize") == EXIT_CHECKPOINT
    assert "mlp.gate.weight: missing" in capsys.readouterr().err and not (tmp_path / "out.unfinished").exists()


def test_config_of_a_dequantised_pack_says_nothing_of_bits(plain):
    assert "quantization" not in json.dumps(json.loads((plain / "config.json").read_text()))
