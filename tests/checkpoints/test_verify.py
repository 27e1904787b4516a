"""`verify` accounts for every tensor and, with --deep, finds values that headers cannot show."""

import numpy as np
import pytest

from checkpoints import CheckpointError, deep, open_store, verify
from checkpoints.commands import execute
from checkpoints.deep import check_values
from checkpoints.inventory import check
from checkpoints.norms import check_norms
from tests.checkpoints.tiny_packs import EXPERT, LAYER, NGRAM, change, drop, edit_config, make_pack, put

CENTRED = (
    f"{LAYER}attn_hyper_connection.hc_norm.weight",
    "model.language_model.layers.1.self_attn.q_norm.weight",
    "model.language_model.layers.1.self_attn.indexer.k_layernorm.weight",
    "model.language_model.layers.1.ple.norm_query.weight",
    "mtp.pre_fc_norm_embedding.weight",
    "mtp.pre_fc_norm_hidden.weight",
    "mtp.hyper_connection_mixer.hc_norm.weight",
)


@pytest.fixture
def pack(tmp_path):
    return make_pack(tmp_path / "pack")


def run(*argv: str) -> int:
    return execute(verify.main, verify.FLAGS, ["checkpoints.verify", *argv])


def refusal(folder) -> str:
    with open_store(folder) as store, pytest.raises(CheckpointError) as caught:
        check_values(store, check(store))
    return str(caught.value)


@pytest.mark.parametrize("case", ["base", "official_names", "long_eos", "silu_two_ple"])
def test_golden_checkpoints_are_good_to_the_last_byte(golden, case, capsys):
    assert run("--deep", str(golden / case)) == 0
    assert f"{case}: good" in capsys.readouterr().out


@pytest.mark.parametrize("layout", ["whole", "shards"])
def test_pack_is_good_and_every_byte_is_read_once(tmp_path, layout, monkeypatch):
    monkeypatch.setattr(deep, "CHUNK_BYTES", 1000)  # small enough that tensors are read in pieces
    read: list[int] = []
    with open_store(make_pack(tmp_path / "pack", ngram_layout=layout)) as store:
        check_values(store, check(store), read.append)
        assert sum(read) == sum(store.info(name).nbytes for name in store.names())
        assert len(read) > len(store.names())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_float_that_is_not_finite_is_named(pack, value, dtype):
    gate = np.zeros((4, 64), dtype)
    gate[3, 63] = value
    put(pack, f"{LAYER}mlp.gate.weight", gate)
    assert f"{LAYER}mlp.gate.weight" in refusal(pack)


def test_largest_finite_floats_pass(pack):
    put(pack, f"{LAYER}mlp.gate.weight", np.full((4, 64), np.finfo(np.float16).min, np.float16))
    with open_store(pack) as store:
        check_values(store, check(store))


def test_bfloat16_that_is_not_finite_is_named(pack):
    def spoil(tensors):
        tensors["model.language_model.embed_tokens.weight"].view(np.uint16)[5, 5] = 0x7F80

    change(pack, spoil, "model.language_model.embed_tokens.weight")
    assert "model.language_model.embed_tokens.weight" in refusal(pack)


def test_table_row_with_a_broken_scale_is_named(pack):
    change(pack, lambda tensors: tensors[f"{NGRAM}trellis"].__setitem__((900, 0), 0x7C00), f"{NGRAM}trellis")
    assert f"{NGRAM}trellis" in refusal(pack)
    change(pack, lambda tensors: tensors[f"{NGRAM}trellis"].__setitem__((900, 0), 0), f"{NGRAM}trellis")
    change(pack, lambda tensors: tensors[f"{NGRAM}trellis"].__setitem__((900, 1), 0x7C00), f"{NGRAM}trellis")
    with open_store(pack) as store:
        check_values(store, check(store))


def test_marker_with_another_value_is_named(pack):
    put(pack, f"{EXPERT}.mul1", np.array(0x1234567, np.int32))
    message = refusal(pack)
    assert f"{EXPERT}.mul1" in message and "0x01234567" in message


@pytest.mark.parametrize("name", CENTRED)
def test_norms_that_a_conversion_shifted_are_refused_by_kind(pack, name):
    def family(name: str) -> tuple[bool, str]:
        return name.startswith("mtp."), name.split(".")[-2]

    with open_store(pack) as store:
        shapes = {n: store.info(n).shape for n in store.names() if n.endswith(".weight") and family(n) == family(name)}
    for member, shape in shapes.items():
        put(pack, member, np.full(shape, 1.02, np.float16))
    message = refusal(pack)
    assert "mean 1.020" in message and "1 + w" in message
    assert any(member in message for member in shapes)


def test_one_odd_norm_of_a_family_is_no_convention(pack):
    put(pack, f"{LAYER}attn_hyper_connection.hc_norm.weight", np.full(256, 0.9, np.float16))
    with open_store(pack) as store:
        check_norms(store)


def test_norm_that_is_used_as_it_is_may_lie_around_one(pack):
    put(pack, f"{LAYER}linear_attn.norm.weight", np.ones(16, np.float16))
    with open_store(pack) as store:
        check_norms(store)


@pytest.mark.parametrize("name", ["head_offsets", "head_vocab_sizes", "layer_multipliers"])
def test_hash_constants_that_the_config_does_not_imply_are_refused(pack, name):
    def spoil(tensors):
        tensors[f"{NGRAM}{name}"] = tensors[f"{NGRAM}{name}"] + 2

    change(pack, spoil, f"{NGRAM}{name}")
    assert NGRAM.removesuffix("ngram_embedding.") in refusal(pack)


def test_hash_constants_of_another_seed_are_refused(pack):
    edit_config(pack, lambda config: config["text_config"].update(seed=1))
    assert "multipliers" in refusal(pack)


def test_damage_behind_good_headers_needs_deep(pack, capsys):
    put(pack, f"{EXPERT}.mul1", np.array(0, np.int32))
    assert run(str(pack)) == 0
    assert "headers only" in capsys.readouterr().out
    assert run(str(pack), "--deep") == 3


def test_missing_tensor_ends_with_3_and_one_line(pack, capsys):
    drop(pack, f"{EXPERT}.svh")
    assert run(str(pack)) == 3
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and f"{EXPERT}.svh" in captured.err


def test_file_cut_by_a_byte_ends_with_3_and_its_name(pack, capsys):
    file = pack / "ngram_embedding.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert run(str(pack)) == 3
    assert "ngram_embedding.safetensors" in capsys.readouterr().err


def test_quiet_says_nothing_about_a_good_checkpoint(pack, capsys):
    assert run("--deep", "--quiet", str(pack)) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_summary_counts_what_was_checked(pack, capsys):
    assert run("--deep", str(pack)) == 0
    captured = capsys.readouterr()
    assert "10 of the vision tower" in captured.out and "draft head of depth 1" in captured.out
    assert "reading: " in captured.err and "GiB" in captured.err
