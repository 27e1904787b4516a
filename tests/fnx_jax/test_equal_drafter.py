"""A draft head that computes what the model computes is right at every depth, greedy and drawn.

The model is made to look at its newest token alone, and so is the head: all that is left is which token, which noise,
which position and which mixer each of them takes.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fnx_jax
from fnx_jax.engine.fixed_depth import FixedDepth
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.request import Request, SamplingParams
from tests.fnx_jax.cases import FOLDER

SILENT = ("out_proj.weight", "o_proj.weight", "down_proj.weight", "down_proj", "value_proj.weight", "fc_hidden.weight")
DEPTH = 6


def write_equal_drafter(folder: Path) -> Path:
    """The base case with layers that add nothing, and a draft head that passes its token on."""
    source = FOLDER / "base"
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    arrays = load_file(source / "model.safetensors")
    for name, value in arrays.items():
        if name.endswith(SILENT):
            arrays[name] = np.zeros_like(value)
        if name.endswith("embed_tokens.weight"):  # of length one, so that norms change nothing but a last bit
            signs = np.random.default_rng(0).integers(0, 2, value.shape)
            arrays[name] = (2 * signs - 1).astype(value.dtype)
        if name == "mtp.fc_embedding.weight":
            arrays[name] = np.eye(len(value), dtype=value.dtype)
        if name == "mtp.pre_fc_norm_embedding.weight":
            arrays[name] = np.zeros_like(value)
        if name.startswith("mtp.hyper_connection_mixer."):
            (main,) = (other for other in arrays if other.endswith("." + name.split(".", 1)[1]) and other != name)
            arrays[name] = arrays[main]
    save_file(arrays, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> fnx_jax.Model:
    """Loaded once."""
    folder = write_equal_drafter(tmp_path_factory.mktemp("equal") / "pack")
    return fnx_jax.load(folder, dtype="float32", lanes=4, context=256)


def requests(temperature: float) -> list[Request]:
    """Streams of unlike prompts."""
    rng = np.random.default_rng(1)
    return [
        Request(
            f"r{lane}",
            tuple(rng.integers(10, 120, 5 + 9 * lane).tolist()),
            SamplingParams(temperature=temperature, top_p=0.95, seed=lane, max_tokens=40),
        )
        for lane in range(4)
    ]


def replies(engine: Engine, temperature: float) -> dict[str, list[int]]:
    """The tokens of every stream."""
    found = engine.run(requests(temperature))
    return {name: [token for e in emissions for token in e.tokens] for name, emissions in found.items()}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_draft_is_accepted_at_every_depth(temperature, model):
    drafted = Engine(model.steps, drafter=FixedDepth(DEPTH))
    found = replies(drafted, temperature)
    status = drafted.status()
    assert len(status.drafted) == DEPTH and min(status.drafted) > 0
    assert status.accepted == status.drafted
    plain = Engine(model.steps)
    assert replies(plain, temperature) == found and plain.status().drafted == ()


def test_a_head_keyed_by_another_position_is_seen(model, monkeypatch):
    whole = model.steps.draft

    def late(plan):
        rows = [(row, row.draw) for row in plan.rows]
        moved = [
            type(row)(**{**vars(row), "draw": type(d)(**{**vars(d), "position": d.position + 1})}) for row, d in rows
        ]
        return whole(type(plan)(tuple(moved), plan.pages_LP, plan.confidence))

    monkeypatch.setattr(model.steps, "draft", late)
    engine = Engine(model.steps, drafter=FixedDepth(DEPTH))
    replies(engine, 1.0)
    assert sum(engine.status().accepted) < 0.9 * sum(engine.status().drafted)
