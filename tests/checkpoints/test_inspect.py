"""`inspect` tells from headers what a checkpoint holds and what is odd about it."""

import json

import numpy as np
import pytest

from checkpoints import inspect, open_store
from checkpoints.commands import execute
from checkpoints.families import families, family_of
from checkpoints.report import report
from tests.checkpoints.tiny_packs import EXPERT, LAYER, NGRAM, change, edit_config, make_pack, put


@pytest.fixture
def pack(tmp_path):
    return make_pack(tmp_path / "pack", indexed=True)


def odd(folder) -> str:
    with open_store(folder) as store:
        return "\n".join(report(store).odd)


def run(*argv: str) -> int:
    return execute(inspect.main, inspect.FLAGS, ["checkpoints.inspect", *argv])


def by_name(folder):
    with open_store(folder) as store:
        return {family.name: family for family in families(store)}


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("model.language_model.layers.11.mlp.experts.511.gate_proj.trellis", "routed experts gate"),
        ("model.layers.3.mlp.experts.7.up_proj.weight", "routed experts up"),
        ("model.language_model.layers.3.mlp.experts.down_proj", "routed experts down"),
        ("mtp.layers.0.mlp.experts.gate_up_proj", "MTP routed experts gate+up"),
        ("model.layers.3.mlp.shared_expert.up_proj.suh", "shared expert"),
        ("model.layers.3.mlp.shared_expert_gate.weight", "routers"),
        ("model.layers.3.linear_attn.norm.weight", "norms"),
        ("model.layers.3.linear_attn.A_log", "GDN decay, conv"),
        ("model.layers.3.attn_hyper_connection.hc_norm.weight", "hyper-connections"),
        ("mtp.fc_hidden.trellis", "MTP fusion"),
        ("mtp.pre_fc_norm_hidden.weight", "MTP norms"),
        (f"{NGRAM}shard_12.trellis", "n-gram table"),
        ("model.layers.1.ple.norm_key.weight", "norms"),
        ("model.layers.1.ple.key_proj.weight", "n-gram mixing"),
        ("model.visual.blocks.3.attn.q.trellis", "vision tower"),
        ("model.layers.1.something.weight", "other"),
    ],
)
def test_every_tensor_has_its_family(name, family):
    assert family_of(name) == family


def test_families_add_up_to_the_whole_pack(pack):
    with open_store(pack) as store:
        found = report(store)
        tensors = sum(f.plain for f in found.families) + sum(
            1 for name in store.names() if f"{name.rpartition('.')[0]}.trellis" in store and ".ple_emb" not in name
        )
        assert tensors + 1 == found.tensors == len(store.names())
        assert sum(f.nbytes for f in found.families) == sum(store.info(name).nbytes for name in store.names())


def test_widths_shapes_and_codebooks_come_from_the_tensors(tmp_path):
    bits = {"*.up_proj": 2.5, "*.mlp.experts.0.*": 3, "*.mlp.experts.*": 4, "lm_head": 6}
    found = by_name(make_pack(tmp_path / "pack", bits=bits))
    assert found["routed experts gate"].bits == {3.0: 2, 4.0: 6}
    assert found["routed experts up"].bits == {2.5: 8}
    assert found["routed experts gate"].shapes == {"128x128": 8}
    assert found["lm_head"].codebooks == {"mul1": 1}
    assert found["GDN projections"].quantised == 0 and found["GDN projections"].dtypes == {"BF16": 3}


@pytest.mark.parametrize("layout", ["whole", "shards"])
def test_table_has_its_bits_a_value(tmp_path, layout):
    table = by_name(make_pack(tmp_path / "pack", ngram_layout=layout))["n-gram table"]
    assert table.bits == {6.0: 1 if layout == "whole" else 4}
    assert table.quantised_values == 928 * 16


def test_average_counts_layers_between_embeddings_and_head(tmp_path):
    bits = {"lm_head": 8, "mtp.*": 8, "*.mlp.experts.*": 3}
    with open_store(make_pack(tmp_path / "pack", bits=bits)) as store:
        assert report(store).average_bits == 3.0


def test_plain_checkpoints_of_both_namings_are_told_apart(golden):
    for case, naming in (("base", "Transformers"), ("official_names", "published")):
        with open_store(golden / case) as store:
            found = report(store)
        assert found.naming.startswith(naming) and found.naming.endswith("plain")
        assert found.average_bits is None and found.ignored == ["golden.safetensors"]
        assert found.odd == ["ignored files: golden.safetensors"]


def test_side_files_and_their_tensors_count_as_outside_the_index(pack):
    with open_store(pack) as store:
        found = report(store)
    assert [file.name for file in found.files if not file.indexed] == [
        "ngram_embedding.safetensors",
        "vision_k6.safetensors",
    ]
    assert found.outside_index == 5 + 2 * 5


def test_a_file_without_a_config_is_described_too(golden):
    with open_store(golden / "exl3" / "linear.safetensors") as store:
        found = report(store)
    assert "no config.json" in found.odd[0]
    assert sum(family.quantised for family in found.families) == 12
    assert any("several codebooks" in line for line in found.odd)


def test_config_numbers_that_differ_from_the_tensors_are_odd(pack):
    edit_config(pack, lambda config: config["quantization_config"].update(bits=4.5, head_bits=8))
    assert "bits 4.5" in odd(pack) and "head_bits 8" in odd(pack)
    edit_config(pack, lambda config: config["quantization_config"].update(codebook="mcg"))
    assert "codebook mcg, markers say mul1" in odd(pack)


def test_unknown_and_missing_tensors_are_odd_not_fatal(pack):
    (pack / "model.safetensors.index.json").unlink()
    put(pack, "stray", np.zeros(3, np.float32))
    change(pack, lambda tensors: tensors.pop(f"{EXPERT}.suh"), f"{EXPERT}.suh")
    assert f"{EXPERT}.suh: missing" in odd(pack) and "stray: an unknown tensor" in odd(pack)
    assert "1 tensors or layers of no known part" in odd(pack)


def test_another_architecture_is_odd_not_fatal(pack):
    edit_config(pack, lambda config: config.update(model_type="llama"))
    assert "will not load: config.json: unsupported architecture" in odd(pack)


def test_tensors_that_the_index_omits_are_odd(pack):
    put(pack, f"{LAYER}mlp.gate.weight", np.zeros((4, 64), np.float16))
    index = json.loads((pack / "model.safetensors.index.json").read_text())
    del index["weight_map"][f"{LAYER}mlp.gate.weight"]
    (pack / "model.safetensors.index.json").write_text(json.dumps(index))
    assert f"the index omits, {LAYER}mlp.gate.weight for one" in odd(pack)


def test_stale_list_of_tensors_is_odd(pack):
    stored = {f"{EXPERT}.suh": {"shape": [64]}, "gone.weight": {"shape": [1]}}
    content = {"tensor_storage": {EXPERT: {"stored_tensors": stored}}}
    (pack / "quantization_config.json").write_text(json.dumps(content))
    lines = odd(pack)
    assert "1 tensors are absent, gone.weight" in lines and f"1 tensors are of another shape, {EXPERT}.suh" in lines
    assert "missing from it" in lines
    (pack / "quantization_config.json").write_text("{}")
    assert "not what writers of this format make" in odd(pack)


def test_files_that_are_not_all_on_disk_are_odd(pack):
    assert "sparse files" in odd(pack)
    change(pack, lambda tensors: None, f"{NGRAM}trellis")
    for name in (EXPERT, "lm_head", "model.visual.placeholder_0"):
        change(pack, lambda tensors: None, f"{name}.trellis")  # written again, zeros and all
    assert "sparse" not in odd(pack)


@pytest.mark.parametrize(
    ("files", "licence"),
    [
        ({}, None),
        ({"LICENSE": "text"}, "LICENSE"),
        ({"README.md": "---\nlicense: apache-2.0\n---\ntext"}, "apache-2.0"),
        ({"README.md": "---\nlicense: other\nlicense_name: qwen\n---\n", "LICENSE.txt": ""}, "qwen (LICENSE.txt)"),
        ({"README.md": "no front matter\nlicense: mit\n"}, None),
    ],
)
def test_licence_is_found_by_name_or_file(pack, files, licence):
    for name, text in files.items():
        (pack / name).write_text(text)
    with open_store(pack) as store:
        assert report(store).licence == licence


def test_command_prints_a_line_for_every_family(pack, capsys):
    assert run(str(pack)) == 0
    text = capsys.readouterr().out
    names = [family for family in by_name(pack)]
    assert all(f"\n{name} " in text for name in names) and len(names) > 20
    assert "odd: " in text and "(side file)" in text and "published names" in text


def test_command_prints_the_same_as_json(pack, capsys):
    assert run(str(pack), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    with open_store(pack) as store:
        assert found["tensors"] == len(store.names()) and found["digest"] == store.digest()
    assert {family["name"] for family in found["families"]} == by_name(pack).keys()


def test_command_ends_with_3_for_what_is_no_checkpoint(tmp_path, capsys):
    assert run(str(tmp_path)) == 3
    assert run(str(tmp_path / "absent")) == 3
    (tmp_path / "broken.safetensors").write_bytes(b"short")
    assert run(str(tmp_path / "broken.safetensors")) == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and "broken.safetensors" in lines[2]
