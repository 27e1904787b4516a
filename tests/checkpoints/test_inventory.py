"""Every tensor of a checkpoint is accounted for, in one form, or it is refused by that tensor's name."""

import shutil

import numpy as np
import pytest

from checkpoints import CheckpointError, open_store
from checkpoints.full_size import full_config
from checkpoints.inventory import check, expected
from tests.checkpoints.tiny_packs import CONFIG, EXPERT, LAYER, NGRAM, change, drop, edit_config, make_pack, put

MIXER = "mtp.hyper_connection_mixer.hc_norm.weight"
SHARED = f"{LAYER}mlp.shared_expert.up_proj"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return make_pack(tmp_path_factory.mktemp("packs") / "pack")


@pytest.fixture
def pack(original, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(original, tmp_path / "pack")


def refusal(folder) -> str:
    with open_store(folder) as store, pytest.raises(CheckpointError) as caught:
        check(store)
    return str(caught.value)


class NamesOnly:
    """A store of names without files."""

    def __init__(self, *names: str):
        self.path, self._names = "names", tuple(sorted(names))

    def names(self):
        return self._names

    def __contains__(self, name):
        return name in self._names


@pytest.mark.parametrize("case", ["base", "official_names", "long_eos", "silu_two_ple"])
def test_plain_checkpoints_of_both_namings_pass(golden, case):
    with open_store(golden / case) as store:
        inventory = check(store)
        assert inventory.tensors.keys() == set(store.names())
        assert inventory.mtp_layers == 1
        assert store.ignored == ("golden.safetensors",)
        assert len(inventory.tables) == (2 if case == "silu_two_ple" else 1)


def test_full_size_plain_checkpoint_has_the_published_number_of_tensors():
    prefix = "model.language_model.layers."
    fused = [f"{prefix}{i}.mlp.experts.gate_up_proj" for i in range(48)]
    store = NamesOnly(*fused, "mtp.layers.0.mlp.experts.gate_up_proj", "model.visual.a", "model.visual.b")
    inventory = expected(full_config(), store)  # pyright: ignore[reportArgumentType]
    assert len(inventory.tensors) == 1658 - 333
    assert sum(name.startswith("mtp.") for name in inventory.tensors) == 31
    assert inventory.vision == ("model.visual.a", "model.visual.b")
    shards = [name for name in inventory.tensors if ".shard_" in name]
    assert len(shards) == 128 and {inventory.tensors[name].shape for name in shards} == {(2500012, 160)}
    assert inventory.tensors[f"{prefix}0.linear_attn.conv1d.weight"].shape == (10240, 1, 4)
    assert inventory.tensors[f"{prefix}3.self_attn.q_proj.weight"].shape == (12288, 2560)
    assert inventory.tensors[f"{prefix}3.self_attn.indexer.index_qk_proj.weight"].shape == (640, 2560)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ngram_layout": "shards"},
        {"mtp_mixer_file": "mtp_hyper_connection_mixer_patch.safetensors"},
        {"vision_file": ""},
        {"vision_linears": 0},
        {"bits": {"lm_head": 2.5, "*.mlp.experts.*": 3}},
    ],
)
def test_packs_of_every_published_form_pass(tmp_path, changes):
    with open_store(make_pack(tmp_path / "pack", indexed=True, **changes)) as store:
        inventory = check(store)
        assert len(inventory.tensors) + len(inventory.vision) == len(store.names())
        assert f"{EXPERT}.mul1" in inventory.tensors


def test_table_and_vision_count_though_the_index_omits_them(tmp_path):
    folder = make_pack(tmp_path / "pack", indexed=True)
    assert "ngram_embedding" not in (folder / "model.safetensors.index.json").read_text()
    with open_store(folder) as store:
        assert {f"{NGRAM}trellis", f"{NGRAM}head_bias"} <= check(store).tensors.keys()
    (folder / "ngram_embedding.safetensors").unlink()
    assert "ngram_embedding" in refusal(folder)


@pytest.mark.parametrize(
    "name",
    [
        f"{EXPERT}.trellis",
        f"{EXPERT}.suh",
        f"{EXPERT}.svh",
        f"{EXPERT}.mul1",
        f"{LAYER}mlp.gate.weight",
        f"{LAYER}linear_attn.A_log",
        "model.language_model.embed_tokens.weight",
        "model.language_model.layers.1.self_attn.indexer.k_layernorm.weight",
        f"{NGRAM}trellis",
        f"{NGRAM}head_bias",
        f"{NGRAM}layer_multipliers",
        "mtp.fc_hidden.trellis",
        MIXER,
        "lm_head.svh",
    ],
)
def test_missing_tensor_is_named(pack, name):
    drop(pack, name)
    message = refusal(pack)
    assert "1 tensor does not fit" in message or name == f"{NGRAM}trellis"
    assert name.removesuffix(".trellis") in message and "missing" in message


def test_missing_table_shard_is_named(tmp_path):
    folder = make_pack(tmp_path / "pack", ngram_layout="shards")
    drop(folder, f"{NGRAM}shard_3.trellis")
    assert f"{NGRAM}shard_3.trellis: missing" in refusal(folder)


def test_lost_marker_is_named_where_the_config_names_no_codebook(pack):
    edit_config(pack, lambda config: config.pop("quantization_config"))
    drop(pack, f"{EXPERT}.mul1")
    assert f"{EXPERT}.mul1: missing" in refusal(pack)


def test_packs_without_any_marker_are_3inst(tmp_path):
    quantization = {"quant_method": "exl3", "codebook": "3inst"}
    with open_store(make_pack(tmp_path / "pack", quantization=quantization)) as store:
        assert f"{EXPERT}.mul1" not in check(store).tensors


@pytest.mark.parametrize("name", ["model.language_model.layers.0.mlp.extra.weight", "lm_head.weight_scale", "stray"])
def test_unknown_tensor_is_named(pack, name):
    put(pack, name, np.zeros(3, np.float32))
    assert f"{name}: an unknown tensor" in refusal(pack)


@pytest.mark.parametrize(
    ("name", "array", "found"),
    [
        (f"{EXPERT}.trellis", np.zeros((4, 8, 64), np.int16), "found I16 [4, 8, 64]"),
        (f"{EXPERT}.trellis", np.zeros((8, 8, 65), np.int16), "found I16 [8, 8, 65]"),
        (f"{EXPERT}.trellis", np.zeros((8, 16, 64), np.int16), "found I16 [8, 16, 64]"),
        (f"{EXPERT}.suh", np.zeros(64, np.float16), "found F16 [64]"),
        (f"{EXPERT}.svh", np.zeros(128, np.float32), "found F32 [128]"),
        (f"{EXPERT}.mul1", np.zeros(1, np.int32), "found I32 [1]"),
        (f"{LAYER}mlp.gate.weight", np.zeros((64, 4), np.float16), "found F16 [64, 4]"),
        (f"{LAYER}mlp.gate.weight", np.zeros((4, 64), np.int16), "found I16 [4, 64]"),
        (f"{NGRAM}head_offsets", np.zeros(8, np.int32), "found I32 [8]"),
        (f"{NGRAM}trellis", np.zeros((904, 7), np.int16), "found I16 [904, 7]"),
        (MIXER, np.zeros(255, np.float16), "found F16 [255]"),
    ],
)
def test_wrong_shape_or_dtype_is_named_with_both(pack, name, array, found):
    put(pack, name, array)
    message = refusal(pack)
    assert f"{name}: " in message and "was wanted" in message and found in message


def test_half_widths_are_refused_without_the_codebook_that_has_them(tmp_path):
    folder = make_pack(tmp_path / "pack", bits={"*": 2.5}, quantization={"quant_method": "exl3", "codebook": "mcg"})
    assert "found I16" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "array", "why"),
    [
        (f"{EXPERT}.weight", np.zeros((8, 64), np.float16), "are there as well"),
        (f"{EXPERT}.su", np.zeros(8, np.int16), "suh is there as well"),
        (f"{EXPERT}.sv", np.zeros(8, np.int16), "svh is there as well"),
        (f"{EXPERT}.mcg", np.zeros((), np.int32), "is there as well"),
        (f"{EXPERT}.scale", np.zeros((), np.float16), "pre-release"),
        (f"{NGRAM}shard_0.weight", np.zeros((226, 16), np.float16), "second form of the n-gram table"),
        (f"{LAYER}mlp.experts.4.up_proj.suh", np.zeros(128, np.float16), "does not have"),
    ],
)
def test_second_form_is_named_as_such(pack, name, array, why):
    put(pack, name, array)
    message = refusal(pack)
    assert f"{name.rpartition('.')[0]}." in message and why in message


def test_fused_and_single_experts_at_once_are_refused(pack):
    put(pack, f"{LAYER}mlp.experts.gate_up_proj", np.zeros((4, 16, 64), np.float16))
    put(pack, f"{LAYER}mlp.experts.down_proj", np.zeros((4, 64, 8), np.float16))
    message = refusal(pack)
    assert f"{LAYER}mlp.experts.0." in message and "fused" in message and "more" in message


def test_every_linear_may_be_plain_or_quantised_by_itself(pack):
    def unpack(tensors):
        for part in ("trellis", "suh", "svh", "mul1"):
            del tensors[f"{SHARED}.{part}"]
        tensors[f"{SHARED}.weight"] = np.zeros((8, 64), np.float16)

    change(pack, unpack, f"{SHARED}.trellis")
    with open_store(pack) as store:
        tensors = check(store).tensors
    assert f"{SHARED}.weight" in tensors and f"{EXPERT}.trellis" in tensors


def test_packed_signs_of_older_files_pass(pack):
    def repack(tensors):
        del tensors[f"{EXPERT}.suh"]
        tensors[f"{EXPERT}.su"] = np.zeros(8, np.int16)

    change(pack, repack, f"{EXPERT}.suh")
    with open_store(pack) as store:
        assert f"{EXPERT}.su" in check(store).tensors


def test_message_counts_what_it_does_not_list(pack):
    change(pack, lambda tensors: [tensors.pop(n) for n in list(tensors) if n.endswith(".suh")], f"{EXPERT}.suh")
    message = refusal(pack)
    assert message.count("missing") == 3 and "more" in message and "\n" not in message


@pytest.mark.parametrize("spelling", ["indexed_attention", "qwen_sparse_attention"])
def test_every_spelling_of_the_sparse_layers_passes(pack, spelling):
    edit_config(pack, lambda config: config["text_config"].update(layer_types=["linear_attention", spelling]))
    with open_store(pack) as store:
        assert check(store).text["layer_types"][1] == spelling


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (lambda c: c.update(model_type="llama"), "unsupported architecture"),
        (lambda c: c["quantization_config"].update(quant_method="gptq"), "quant_method 'gptq'"),
        (lambda c: c["quantization_config"].update(codebook="sqg_fp16"), "codebook 'sqg_fp16'"),
        (lambda c: c["text_config"].pop("hidden_size"), "hidden_size"),
        (lambda c: c["text_config"].update(layer_types=["linear_attention", "dense"]), "'dense'"),
        (lambda c: c["text_config"].update(ple_layer_ids=[3]), "ple_layer_ids"),
        (lambda c: c["text_config"].update(split_ngram_parts=7), "n-gram rows"),
        (lambda c: c["text_config"].update(mtp_num_hidden_layers=-1), "mtp_num_hidden_layers"),
        (lambda c: c["text_config"].update(seed="x"), "seed"),
    ],
)
def test_config_that_makes_no_sense_is_refused_by_key(pack, edit, part):
    edit_config(pack, edit)
    assert part in refusal(pack)


def test_checkpoint_without_config_is_refused(pack):
    (pack / "config.json").unlink()
    assert "no config.json" in refusal(pack)


def test_draft_head_is_wanted_where_the_config_has_one(tmp_path):
    text = CONFIG["text_config"] | {"mtp_num_hidden_layers": 0}
    folder = make_pack(tmp_path / "pack", CONFIG | {"text_config": text})
    with open_store(folder) as store:
        assert check(store).mtp_layers == 0
    edit_config(folder, lambda config: config["text_config"].update(mtp_num_hidden_layers=1))
    assert "mtp_num_hidden_layers 1" in refusal(folder)


def test_draft_head_is_accounted_for_where_the_config_omits_it(pack):
    edit_config(pack, lambda config: config["text_config"].update(mtp_num_hidden_layers=0))
    with open_store(pack) as store:
        assert check(store).mtp_layers == 1
    drop(pack, MIXER)
    assert MIXER in refusal(pack)


def test_tied_head_may_be_absent_and_counts_where_it_is_there(pack):
    edit_config(pack, lambda config: config.update(tie_word_embeddings=True))
    with open_store(pack) as store:
        assert "lm_head.trellis" in check(store).tensors
    drop(pack, "lm_head.trellis")
    assert "lm_head.trellis: missing" in refusal(pack)
    drop(pack, "lm_head.suh", "lm_head.svh", "lm_head.mul1")
    with open_store(pack) as store:
        assert not any(name.startswith("lm_head") for name in check(store).tensors)
