"""A prepared checkpoint is the model it was made from, bit for bit, on any number of devices."""

import json
import shutil

import jax
import numpy as np
import pytest

from checkpoints import CheckpointError, convert
from checkpoints.commands import execute
from fnx_jax import recorder as module
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


@pytest.fixture(scope="module")
def packs(tmp_path_factory):
    """A pack of one EXL3 layer, and its prepared form."""
    folder = tmp_path_factory.mktemp("packs")
    pack = first_layers(folder / "pack", 1)
    assert prepare(pack, folder / "prepared") == 0
    return pack, folder / "prepared"


def test_pack_and_its_prepared_form_are_one_model(packs):
    (pack, prepared), devices = packs, 4
    assert not list(prepared.glob("*.safetensors")) and (prepared / "tokenizer.json").exists()
    (wanted, wanted_params), (found, params) = parameters(pack, devices), parameters(prepared, devices)
    assert_same(params, wanted_params)
    found.steps.programs = wanted.steps.programs  # compiled for the same shapes
    assert np.array_equal(found.logits(IDS), wanted.logits(IDS))


@pytest.fixture(scope="module")
def prepared_exactly(tmp_path_factory):
    """Golden cases in float32, each prepared once."""
    folder = tmp_path_factory.mktemp("exact")

    def get(name: str):
        if not (folder / name).exists():
            assert prepare(FOLDER / name, folder / name, "--exact") == 0
        return folder / name

    return get


@pytest.mark.parametrize(
    ("name", "devices"), [("silu_two_ple", 1), ("silu_two_ple", 2), ("four_ranks", 1), ("four_ranks", 4)]
)
def test_one_folder_has_the_logits_of_one_device_on_any_number(prepared_exactly, exact_model, name, devices):
    found = load(prepared_exactly(name), devices=devices, dtype="float32", lanes=4, context=256)
    found.steps.programs = exact_model(name, devices).steps.programs
    assert np.array_equal(found.logits(IDS), exact_model(name).logits(IDS))


def test_logits_have_the_same_bits(prepared):
    found, wanted = (load(path, lanes=1, context=64, max_rows=16) for path in (prepared, CASE))
    found.steps.programs = wanted.steps.programs
    assert np.array_equal(found.logits(IDS), wanted.logits(IDS))


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
