"""Both plain layouts and the EXL3 one are told apart by their tensors; unknown architectures are refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoints import CheckpointError, open_store
from checkpoints.naming import (
    EXPERT_PROJECTIONS,
    LINEAR_ATTENTION,
    SPARSE_ATTENTION,
    expert_layout,
    language_prefix,
    layer_kinds,
    names_under,
    read_expert,
    text_config,
)


def stored(tmp_path, *names: str, shape=(2, 2)):
    save_file({name: np.zeros(shape, np.float16) for name in names}, tmp_path / "model.safetensors")
    return open_store(tmp_path / "model.safetensors")


def test_prefix_is_read_off_the_tensors(golden):
    with open_store(golden / "base") as flat, open_store(golden / "official_names") as published:
        assert language_prefix(flat) == "model."
        assert language_prefix(published) == "model.language_model."


def test_vision_tensors_do_not_make_a_text_model(tmp_path):
    with pytest.raises(CheckpointError, match="no text model"):
        language_prefix(stored(tmp_path, "model.visual.blocks.0.weight", "mtp.fc_hidden.weight"))


def test_two_namings_at_once_are_refused(tmp_path):
    store = stored(tmp_path, "model.language_model.layers.0.x", "model.layers.0.x")
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.x: two namings"):
        language_prefix(store)


def test_names_under_a_prefix_are_exactly_those(tmp_path):
    store = stored(tmp_path, "a.b", "a.b.c", "a.b.d", "a.bc", "a.", "b")
    assert names_under(store, "a.b.") == ("a.b.c", "a.b.d")
    assert names_under(store, "a.b") == ("a.b", "a.b.c", "a.b.d", "a.bc")
    assert names_under(store, "c") == () and names_under(store, "") == store.names()


def test_text_config_is_the_nested_part_or_the_whole(golden):
    flat, nested = (json.loads((golden / case / "config.json").read_text()) for case in ("base", "official_names"))
    assert text_config(flat) is flat
    assert text_config(nested) is nested["text_config"]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"]},
        {"model_type": "qwen4_exp", "text_config": {"model_type": "llama"}},
        {"model_type": ["qwen4_exp"]},
    ],
)
def test_other_architectures_are_refused(config):
    with pytest.raises(CheckpointError, match="unsupported architecture"):
        text_config(config)


def test_text_config_that_is_no_object_is_refused():
    with pytest.raises(CheckpointError, match="text_config must be an object"):
        text_config({"model_type": "qwen4_exp", "text_config": 5})


@pytest.mark.parametrize("spelling", ["full_attention", "indexed_attention", "qwen_sparse_attention"])
def test_every_spelling_of_sparse_attention_means_the_same(spelling):
    kinds = layer_kinds({"num_hidden_layers": 2, "layer_types": ["linear_attention", spelling]})
    assert kinds == (LINEAR_ATTENTION, SPARSE_ATTENTION)


def test_layer_kinds_without_a_list_follow_the_interval():
    assert layer_kinds({"num_hidden_layers": 4}) == (LINEAR_ATTENTION,) * 3 + (SPARSE_ATTENTION,)
    text = {"num_hidden_layers": 4, "full_attention_interval": 2}
    assert layer_kinds(text) == (LINEAR_ATTENTION, SPARSE_ATTENTION) * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}, "layer 0: unknown layer type"),
        ({"num_hidden_layers": 2, "layer_types": ["full_attention"]}, "1 layer_types"),
        ({"layer_types": []}, "num_hidden_layers"),
        ({"num_hidden_layers": 2, "full_attention_interval": 0}, "full_attention_interval"),
    ],
)
def test_layer_types_that_make_no_sense_are_refused(text, message):
    with pytest.raises(CheckpointError, match=message):
        layer_kinds(text)


def test_fused_and_separate_experts_read_alike(golden, tmp_path):
    fused = load_file(golden / "official_names" / "model.safetensors")
    prefix = "model.language_model.layers.0."
    gate_up, down = fused[f"{prefix}mlp.experts.gate_up_proj"], fused[f"{prefix}mlp.experts.down_proj"]
    F, separate = gate_up.shape[1] // 2, {}
    for e in range(len(down)):
        parts = (gate_up[e, :F], gate_up[e, F:], down[e])
        for projection, part in zip(EXPERT_PROJECTIONS, parts, strict=True):
            separate[f"{prefix}mlp.experts.{e}.{projection}.weight"] = np.ascontiguousarray(part)
    save_file(separate, tmp_path / "model.safetensors")
    with open_store(golden / "official_names") as one, open_store(tmp_path / "model.safetensors") as other:
        assert (expert_layout(one, prefix), expert_layout(other, prefix)) == ("fused", "separate")
        for e in (0, 3, len(down) - 1):
            for projection in EXPERT_PROJECTIONS:
                first, second = (read_expert(store, prefix, e, projection) for store in (one, other))
                assert first.dtype == second.dtype and first.shape == second.shape
                assert first.tobytes() == second.tobytes()


def test_exl3_experts_are_told_apart(golden):
    prefix = "model.language_model.layers.3."
    with open_store(golden / "exl3" / "moe.safetensors") as store:
        assert expert_layout(store, prefix) == "exl3"
        with pytest.raises(CheckpointError, match="experts are EXL3"):
            read_expert(store, prefix, 0, "gate_proj")


def test_layers_without_experts_or_with_two_layouts_are_refused(tmp_path):
    store = stored(tmp_path, "a.mlp.experts.down_proj", "a.mlp.experts.0.up_proj.weight", "b.mlp.gate.weight")
    with pytest.raises(CheckpointError, match="fused and separate"):
        expert_layout(store, "a.")
    with pytest.raises(CheckpointError, match="no experts"):
        expert_layout(store, "b.")


@pytest.mark.parametrize("expert", [-1, 2])
@pytest.mark.parametrize("shape", [(2, 4, 3)])
def test_experts_that_are_not_there_are_refused(tmp_path, expert, shape):
    fused = stored(tmp_path, "l.mlp.experts.gate_up_proj", "l.mlp.experts.down_proj", shape=shape)
    assert read_expert(fused, "l.", 1, "down_proj").shape == (4, 3)
    assert read_expert(fused, "l.", 1, "gate_proj").shape == (2, 3)
    for projection in EXPERT_PROJECTIONS:
        with pytest.raises(CheckpointError, match=rf"l\.mlp\.experts\..*no expert {expert}"):
            read_expert(fused, "l.", expert, projection)
        with pytest.raises(CheckpointError, match=rf"other\.mlp\.experts\.{expert}\.{projection}\.weight"):
            read_expert(fused, "other.", expert, projection)


@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 4)])
def test_fused_experts_of_another_shape_are_refused(tmp_path, shape):
    store = stored(tmp_path, "l.mlp.experts.gate_up_proj", shape=shape)
    with pytest.raises(CheckpointError, match="gate_up_proj"):
        read_expert(store, "l.", 0, "up_proj")


def test_separate_expert_of_another_rank_is_refused(tmp_path):
    store = stored(tmp_path, "l.mlp.experts.0.up_proj.weight", shape=(4,))
    with pytest.raises(CheckpointError, match=r"up_proj\.weight"):
        read_expert(store, "l.", 0, "up_proj")


def test_unknown_projection_is_the_callers_error(tmp_path):
    with pytest.raises(ValueError, match="gate_up"):
        read_expert(stored(tmp_path, "x"), "l.", 0, "gate_up")
