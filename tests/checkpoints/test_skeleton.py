"""A skeleton has a published pack's names, shapes and sizes, and its markers and hash constants, but no weights."""

import json
from collections import Counter

import pytest

from checkpoints import CheckpointError, open_store, skeleton
from checkpoints.commands import UsageError, execute
from checkpoints.full_size import full_config
from checkpoints.inventory import check
from checkpoints.ngram import open_ngram_table
from checkpoints.outlines import outline_pack
from checkpoints.recipe import read_recipe, recipe_names
from checkpoints.skeleton import write_skeleton
from tests.checkpoints.tiny_packs import CONFIG, EXPERT, NGRAM, make_pack, recipe

SHARDS = [f"model-{i:05d}-of-00009.safetensors" for i in range(1, 10)]


def run(*argv: str) -> int:
    return execute(skeleton.main, skeleton.FLAGS, ["checkpoints.skeleton", *argv])


def test_full_size_outline_counts_what_the_published_pack_has():
    pack = outline_pack(full_config(), read_recipe("flash_next_4.05"))
    assert list(pack) == [*SHARDS, "ngram_embedding.safetensors", "vision_k6.safetensors"]
    outlines = {outline.name: outline for file in pack.values() for outline in file}
    assert len(outlines) == sum(map(len, pack.values())) == 304113
    endings = Counter(name.rpartition(".")[2] for name in outlines)
    assert endings["mul1"] == 75751 and endings["bias"] == 164
    assert {outline.name for outline in pack["model-00009-of-00009.safetensors"]} >= {
        f"mtp.hyper_connection_mixer.{name}.weight"
        for name in ("hc_norm", "input_mix_weight_down", "input_mix_weight_up")
    }
    shapes = {name: outline.shape for name, outline in outlines.items()}
    experts = "model.language_model.layers.47.mlp.experts.511"
    assert shapes[f"{experts}.gate_proj.trellis"] == (160, 40, 64)
    assert shapes[f"{experts}.down_proj.trellis"] == (40, 160, 64)
    assert shapes["lm_head.trellis"] == (160, 15520, 96)
    assert shapes["mtp.fc_hidden.trellis"] == (160, 160, 80)
    assert shapes[f"{NGRAM}trellis"] == (320001536, 61)
    assert outlines["mtp.pre_fc_norm_hidden.weight"].dtype == "F16"
    assert outlines["mtp.pre_fc_norm_embedding.weight"].dtype == "BF16"
    assert outlines["model.language_model.layers.0.mlp.gate.weight"].dtype == "F16"
    sizes = [sum(outline.nbytes for outline in pack[name]) for name in SHARDS]
    assert max(sizes) < 1.01 * min(sizes)


def test_every_recipe_of_the_package_outlines_the_whole_network():
    assert recipe_names() == ["flash_next_3.05", "flash_next_4.05"]
    pack = outline_pack(CONFIG, read_recipe("flash_next_3.05"))
    assert list(pack) == [
        "model-00001-of-00001.safetensors",
        "ngram_embedding.safetensors",
        "mtp_hyper_connection_mixer_patch.safetensors",
    ]
    assert len(pack["mtp_hyper_connection_mixer_patch.safetensors"]) == 3
    with pytest.raises(CheckpointError, match="no recipe 'other'; there are: flash_next_3.05"):
        read_recipe("other")


def test_small_skeleton_opens_and_passes(tmp_path):
    sizes = write_skeleton(tmp_path / "new" / "pack", CONFIG, recipe(vision_file="vision_k6.safetensors"))
    assert sizes.keys() >= {"config.json", "generation_config.json", "model.safetensors.index.json"}
    with open_store(tmp_path / "new" / "pack") as store:
        assert len(check(store).vision) == 10
        assert store.unindexed == () and store.ignored == ()
        assert store.metadata("ngram_embedding.safetensors") == {
            "format": "exl3_ngram_trellis",
            "version": "1",
            "K": "6",
            "codebook": "mul1",
            "row_dim": "16",
            "rows": "928",
        }


def test_index_names_the_shards_alone(tmp_path):
    folder = make_pack(tmp_path / "pack", indexed=True)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
    with open_store(folder) as store:
        assert index["metadata"]["total_size"] == sum(store.info(name).nbytes for name in index["weight_map"])


@pytest.mark.parametrize("layout", ["whole", "shards"])
def test_markers_and_hash_constants_hold_their_values(tmp_path, layout):
    with open_store(make_pack(tmp_path / "pack", ngram_layout=layout)) as store:
        assert int(store.read(f"{EXPERT}.mul1")) & 0xFFFFFFFF == 0x83DCD12D
        assert not store.read(f"{EXPERT}.trellis").any()
        table = open_ngram_table(store, NGRAM.removesuffix("ngram_embedding."))
        assert table.rows == 928 and table.sizes.tolist()[:2] == [101, 103]


def test_number_of_tensors_is_made_up_by_plain_vision_ones(tmp_path):
    with open_store(make_pack(tmp_path / "bare")) as store:
        bare = len(store.names())
    with open_store(make_pack(tmp_path / "full", tensors=bare + 7)) as store:
        assert len(store.names()) == bare + 7
        assert len(check(store).vision) == 17


def test_weights_are_holes(tmp_path):
    big = CONFIG | {"text_config": CONFIG["text_config"] | {"vocab_size": 1 << 20}}
    write_skeleton(tmp_path / "pack", big, recipe())
    stats = [file.stat() for file in (tmp_path / "pack").glob("*.safetensors")]
    assert sum(stat.st_size for stat in stats) > 200e6
    assert sum(stat.st_blocks * 512 for stat in stats) < 2e6


def test_folder_that_is_not_empty_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(UsageError, match="an empty or a new folder"):
        write_skeleton(tmp_path, CONFIG, recipe())
    assert run(str(tmp_path)) == 2
    assert run(str(tmp_path / "mine")) == 2
    assert "empty" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_unknown_recipe_and_missing_folder_end_with_2(tmp_path, capsys):
    assert run(str(tmp_path / "pack"), "--recipe=other") == 2
    assert run() == 2
    assert "flash_next_4.05" in capsys.readouterr().err
    assert not (tmp_path / "pack").exists()
