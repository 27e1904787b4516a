"""A checkpoint loads whole or not at all, by name; a bad value ends its own request."""

import gc
import json
import shutil
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fnx_jax
from checkpoints.errors import CheckpointError
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.request import Request, SamplingParams
from tests.fnx_jax.cases import FOLDER, read_case


@pytest.fixture
def folder(tmp_path) -> Path:
    """A copy of a golden checkpoint to break."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FOLDER / "base" / name, tmp_path)
    return tmp_path


def edit_config(folder: Path, **values) -> None:
    """Replaces keys of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def edit_tensor(folder: Path, name: str, change) -> None:
    """Rewrites one tensor; None removes it."""
    tensors = load_file(folder / "model.safetensors")
    value = change(tensors.pop(name))
    if value is not None:
        tensors[name] = np.ascontiguousarray(value)
    save_file(tensors, folder / "model.safetensors")


def refused(folder: Path, *words: str) -> None:
    """Loading fails by name and leaves nothing on the devices."""
    gc.collect()
    before = len(jax.live_arrays())
    with pytest.raises(CheckpointError) as caught:
        fnx_jax.load(folder, dtype="float32", lanes=1, context=64)
    for word in words:
        assert word in str(caught.value)
    caught = None
    assert len(jax.live_arrays()) <= before


NORM = "model.layers.3.self_attn.q_norm.weight"


def test_missing_tensor(folder):
    edit_tensor(folder, NORM, lambda value: None)
    refused(folder, NORM, "missing")


def test_misshapen_tensor(folder):
    edit_tensor(folder, NORM, lambda value: value[:-1])
    refused(folder, NORM)


def test_extra_tensor(folder):
    edit_tensor(folder, NORM, lambda value: value)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"model.layers.3.self_attn.scale": np.zeros(3, np.float32)}, folder / "model.safetensors")
    refused(folder, "model.layers.3.self_attn.scale")


def test_norm_stored_around_one(folder):
    edit_tensor(folder, NORM, lambda value: (value.astype(np.float32) + 1).astype(ml_dtypes.bfloat16))
    refused(folder, NORM, "around zero")


def test_failure_at_the_last_leaf_leaves_nothing(folder):
    name = "mtp.hyper_connection_mixer.hc_norm.weight"
    edit_tensor(folder, name, lambda value: (value.astype(np.float32) + 1).astype(ml_dtypes.bfloat16))
    refused(folder, name)


def test_caches_that_do_not_fit_leave_nothing(folder, monkeypatch):
    def refuse(*arguments):
        raise MemoryError("no room for the lanes")

    monkeypatch.setattr("fnx_jax.loading.empty_state", refuse)
    before = len(jax.live_arrays())
    with pytest.raises(MemoryError) as caught:
        fnx_jax.load(folder, dtype="float32", lanes=1, context=64)
    assert len(jax.live_arrays()) <= before
    assert caught.value.args == ("no room for the lanes",)


@pytest.mark.parametrize("draft_head", [True, False])
@pytest.mark.parametrize("name", ["golden/base", "golden/official_names", "../checkpoints/demo"])
def test_progress_ends_at_the_total(name, draft_head):
    told = []
    fnx_jax.load(FOLDER.parent / name, draft_head=draft_head, lanes=1, context=64, progress=lambda *at: told.append(at))
    done = [at for at, _ in told]
    assert done == sorted(done) and {total for _, total in told} == {done[-1]}


def test_truncated_file(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    refused(folder, "model.safetensors")


def test_unsupported_architecture(folder):
    edit_config(folder, model_type="llama")
    refused(folder, "llama")


def test_unknown_quantization(folder):
    edit_config(folder, quantization_config={"quant_method": "sqg_e4m3"})
    refused(folder, "sqg_e4m3")


def test_contradictory_config(folder):
    edit_config(folder, num_attention_heads=3)
    refused(folder)


def test_other_spelling_of_sparse_layers(folder, exact_model):
    spelled = ["linear_attention"] * 3 + ["qwen_sparse_attention", "linear_attention", "full_attention"]
    edit_config(folder, layer_types=spelled)
    assert fnx_jax.load(folder, dtype="float32", lanes=4, context=256).config == exact_model("base").config


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (dict(devices=3), "devices"),
        (dict(dtype="float8"), "dtype"),
        (dict(lanes=0), "lanes"),
        (dict(lanes=17, max_rows=16), "lanes"),
        (dict(context=10**6), "context"),
        (dict(max_rows=17), "max_rows"),
        (dict(draft_depth=0), "draft_depth=0"),
        (dict(draft_depth=16), "draft_depth=16"),
        (dict(draft_blocks=0), "draft_blocks=0"),
    ],
)
def test_bad_argument_is_named(arguments, word):
    with pytest.raises(ValueError, match=word):
        fnx_jax.load(FOLDER / "base", **arguments)


def test_bad_ids_are_named(exact_model):
    model = exact_model("base")
    for ids, word in (([], "ids"), ([128], "128"), ([-1], "-1"), ([1.5], "dtype"), ([1] * 300, "context")):
        with pytest.raises(ValueError, match=word):
            model.logits(ids)


@pytest.mark.parametrize("lengths", [[4], [-1], [2.0], [1, 2]])
def test_bad_lengths_are_named(lengths, exact_model):
    with pytest.raises(ValueError, match="lengths"):
        exact_model("base").score([[1, 2, 3]], lengths)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(dict(temperature=-1.0), "temperature"), (dict(seed=2**70), "seed"), (dict(max_tokens=-1), "max_tokens")],
)
def test_bad_parameters_are_named(arguments, word, exact_model):
    with pytest.raises(ValueError, match=word):
        exact_model("base").generate([1, 2], **arguments)


def test_a_model_is_described_without_its_arrays(exact_model):
    assert "Array" not in repr(exact_model("base"))


def test_two_models_of_different_bounds_live_side_by_side(exact_model):
    big, small = exact_model("base"), fnx_jax.load(FOLDER / "base", dtype="float32", lanes=1, context=64)
    ids = read_case("base")["p0.input_ids"]
    assert np.array_equal(big.logits(ids), small.logits(ids))
    assert big.generate(ids, max_tokens=4) == small.generate(ids, max_tokens=4)
    with pytest.raises(ValueError, match="context"):
        small.logits([1] * 65)


def test_a_value_that_is_not_finite_ends_its_request_alone(folder):
    poisoned = 77

    def spoil(value):
        value[poisoned] = np.nan
        return value

    edit_tensor(folder, "model.embed_tokens.weight", spoil)
    steps = fnx_jax.load(folder, dtype="float32", lanes=4, context=256).steps

    def request(name, ids):
        return Request(name, tuple(ids), SamplingParams(temperature=0.0, max_tokens=8, logit_bias=((poisoned, -50.0),)))

    clean = {name: request(name, ids) for name, ids in (("a", [3, 4, 6]), ("b", [9, 8, 7, 6] * 6))}
    solo = {name: Engine(steps).run([r])[name] for name, r in clean.items()}
    together = Engine(steps).run([clean["a"], request("bad", [5, poisoned, 6, 2]), clean["b"]])
    assert together["bad"][-1].finish.reason == "error"
    assert "finite" in together["bad"][-1].finish.error
    for name in clean:
        assert [e.tokens for e in together[name]] == [e.tokens for e in solo[name]]
        assert together[name][-1].finish.reason == "length"
    again = Engine(steps).run([request("c", [3, 4, 6])])["c"]
    assert [e.tokens for e in again] == [e.tokens for e in solo["a"]]


def test_without_its_draft_head_a_model_drafts_nothing_and_says_the_same(exact_model):
    bare = fnx_jax.load(FOLDER / "base", dtype="float32", lanes=1, context=64, draft_head=False)
    assert bare.params.mtp is None and bare.steps.draft_depth == 0
    prompt = read_case("base")["p0.input_ids"][:20]
    model = exact_model("base")
    assert model.steps.draft_depth == 15
    assert bare.generate(prompt, max_tokens=8) == model.generate(prompt, max_tokens=8)
    assert len(bare.steps.state.cache.attention) == len(model.steps.state.cache.attention) - 1
