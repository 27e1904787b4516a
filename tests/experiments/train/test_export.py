"""A trained network as a checkpoint: named as published, and read back."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest

from checkpoints.inventory import check
from checkpoints.naming import read_expert
from checkpoints.store import open_store
from checkpoints.write import write_safetensors
from experiments.demo.sizes import text_config
from experiments.train import export
from experiments.train.run import Trained
from experiments.train.start import PREFIX, first_params
from fnx_jax.families.flash_next.config import read_config
from tests.experiments.train import tiny


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A network of four layers in a folder: what was trained, its config, and where it lies."""
    folder = tmp_path_factory.mktemp("plain")
    config_json = {"model_type": "qwen4_exp", "text_config": text_config(tiny.SIZES, reset_id=60)}
    config = read_config(config_json)
    trained = Trained(first_params(config, seed=3), tiny.learner(3).table)
    (folder / "config.json").write_text(json.dumps(config_json), "utf-8")
    write_safetensors(folder / export.MODEL_FILE, export.tensors(trained, config))
    return trained, config, folder


def rounded(leaf) -> np.ndarray:
    return np.asarray(leaf).astype(ml_dtypes.bfloat16).astype(np.float32)


def test_checkpoint_has_every_tensor_and_no_other(written):
    _, _, folder = written
    with open_store(folder) as store:
        inventory = check(store)
        assert inventory.mtp_layers == 1
        assert set(inventory.tensors) == set(store.names())


def test_experts_lie_under_their_published_names(written):
    trained, _, folder = written
    lines = trained.params.layers[2].moe.lines
    with open_store(folder) as store:
        for projection, pool in (("gate_proj", lines.gate), ("up_proj", lines.up), ("down_proj", lines.down)):
            found = read_expert(store, f"{PREFIX}layers.2.", 3, projection).astype(np.float32)
            assert np.array_equal(found, rounded(pool[0][3]))


def test_checkpoint_reads_back_rounded(written):
    trained, config, folder = written
    again = export.read_checkpoint(folder, config)
    assert np.array_equal(again.table, rounded(trained.table))
    for a, b in zip(jax.tree.leaves(again.params), jax.tree.leaves(trained.params), strict=True):
        assert np.array_equal(np.asarray(a), rounded(b))
