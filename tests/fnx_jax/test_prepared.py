"""A prepared checkpoint is the model it was made from, bit for bit, on any number of devices."""

import json
import shutil

import jax
import numpy as np
import pytest

import fnx_jax
from checkpoints import CheckpointError, convert
from checkpoints.commands import execute
from fnx_jax import prepared as module
from fnx_jax.loading import load
from fnx_jax.prepared import ABOUT, ARRAYS
from tests.checkpoints.tiny_packs import first_layers
from tests.fnx_jax.cases import FOLDER

CASE = FOLDER / "base"
IDS = [5, 9, 44, 100, 17, 63]


def prepare(source, out, *flags: str) -> int:
    return execute(convert.main, convert.FLAGS, ["convert", str(source), f"--prepared={out}", *flags])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared") / "base"
    assert prepare(CASE, out) == 0
    return out


def parameters(path, devices: int, **options):
    model = load(path, devices=devices, lanes=1, context=64, max_rows=16, **options)
    return model, jax.tree.map(np.asarray, model.params)


def assert_same(found, wanted) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_parameters_are_those_of_the_checkpoint_on_any_number_of_devices(prepared, devices):
    (found, params), (wanted, wanted_params) = parameters(prepared, devices), parameters(CASE, devices)
    assert_same(params, wanted_params)
    assert found.checkpoint_digest == wanted.checkpoint_digest and found.config == wanted.config
    ids = np.array(IDS)
    assert np.array_equal(found.ngram_embeddings(ids), wanted.ngram_embeddings(ids))


def test_layers_of_a_pack_are_kept_too(tmp_path):
    pack = first_layers(tmp_path / "pack", 1)
    assert prepare(pack, tmp_path / "out") == 0
    assert not list((tmp_path / "out").glob("*.safetensors"))
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert_same(parameters(tmp_path / "out", 2)[1], parameters(pack, 2)[1])


def test_logits_have_the_same_bits(prepared):
    found, wanted = (fnx_jax.load(path, lanes=1, context=64, max_rows=16).logits(IDS) for path in (prepared, CASE))
    assert np.array_equal(found, wanted)


def test_other_arithmetic_is_refused(prepared):
    with pytest.raises(CheckpointError, match="prepared not for dtype float32"):
        load(prepared, dtype="float32")


def test_part_that_is_missing_is_named_and_nothing_stays(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path / "broken")
    shutil.rmtree(tmp_path / "broken" / ARRAYS / "layer-0003")
    before = len(jax.live_arrays())
    with pytest.raises(CheckpointError, match="layer-0003: missing"):
        load(tmp_path / "broken", lanes=1, context=64)
    assert len(jax.live_arrays()) <= before


def test_format_that_is_not_known_is_refused(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path / "other")
    about = json.loads((prepared / ABOUT).read_text())
    (tmp_path / "other" / ABOUT).write_text(json.dumps(about | {"format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        load(tmp_path / "other")


def test_parts_that_are_written_are_not_written_again(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    written: list[str] = []
    real = module._Recorder._write

    def die_at_third(self):
        if len(written) == 2:
            written.append("killed")
            raise Killed
        real(self)
        written.append(self._part)

    monkeypatch.setattr(module._Recorder, "_write", die_at_third)
    with pytest.raises(Killed):
        prepare(CASE, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert prepare(CASE, tmp_path / "out") == 0
    assert len(written) == len(set(written)) and len(written) == 10
    assert_same(parameters(tmp_path / "out", 1)[1], parameters(CASE, 1)[1])
