"""The bench of prepared checkpoints loads what it says, whole, and leaves nothing on the device."""

import json

import jax
import pytest

from checkpoints import open_store
from checkpoints.commands import EXIT_USAGE, execute
from experiments.bench import prepared
from experiments.bench.prepared import figures, folder_bytes, load_and_free, make_forms, measure
from fnx_jax.prepared import is_prepared
from tests.checkpoints.tiny_packs import first_layers


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    return first_layers(tmp_path_factory.mktemp("pack") / "one", 1)


def test_both_forms_are_made_once_and_compared(pack, tmp_path, monkeypatch):
    forms = make_forms(pack, tmp_path)
    assert is_prepared(forms["prepared"]) and not is_prepared(forms["repacked"])
    with open_store(pack) as source, open_store(forms["repacked"]) as copy:
        assert source.names() == copy.names()
    monkeypatch.setattr(prepared, "execute", lambda *_: pytest.fail("made again"))
    loaded: list[str] = []
    monkeypatch.setattr(prepared, "load_and_free", lambda folder, devices: loaded.append(folder.name))
    found = measure(pack, tmp_path, 1, 1)
    assert loaded == [name for form in forms for name in ("one", form, "one", form, form, "one")]
    written = json.loads(json.dumps(figures(found)))
    assert written["prepared"]["form_bytes"] == folder_bytes(forms["prepared"]) > 0
    assert written["repacked"]["repeats"] == 1 and written["repacked"]["pack_bytes"] == folder_bytes(pack)


def test_a_load_is_whole_and_leaves_nothing(pack):
    before = len(jax.live_arrays())
    model = load_and_free(pack, 2)
    assert model.config.layers == 1 and all(leaf.is_deleted() for leaf in jax.tree.leaves(model.params))
    assert len(jax.live_arrays()) <= before


def test_what_cannot_be_converted_is_not_compared(tmp_path, capsys):
    argv = ["bench", f"--model={tmp_path / 'nowhere'}", f"--folder={tmp_path}"]
    assert execute(prepared.main, prepared.FLAGS, argv) == EXIT_USAGE
    assert "no prepared form" in capsys.readouterr().err
