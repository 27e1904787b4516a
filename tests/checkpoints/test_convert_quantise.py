"""A conversion writes what a published pack would hold, whatever is killed on the way, and refuses what it cannot."""

import json
import shutil

import numpy as np
import pytest

from checkpoints import convert, open_store
from checkpoints import write as write_module
from checkpoints.commands import EXIT_CHECKPOINT, EXIT_USAGE, execute
from checkpoints.converter import jobs as jobs_module
from checkpoints.converter import tables
from checkpoints.converter.dequantise import layer_matrix
from checkpoints.converter.jobs import inputs_of, read_weight
from checkpoints.converter.units import network_units
from checkpoints.converter.widths import Average, average_bits, average_widths
from checkpoints.exl3 import linear_info
from checkpoints.full_size import full_config
from checkpoints.inventory import Inventory, check
from checkpoints.naming import PUBLISHED_PREFIX
from checkpoints.ngram import open_ngram_table
from checkpoints.ngram_hash import configured_hash
from checkpoints.quantiser import ldlq, scale
from checkpoints.quantiser import ngram as ngram_module
from checkpoints.recipe import read_recipe
from tests.checkpoints.greedy_search import greedy_search
from tests.checkpoints.tiny_packs import change, drop, edit_config

EXPERT = "model.language_model.layers.0.mlp.experts.3."
MIXER = "mtp.hyper_connection_mixer.hc_norm.weight"


def run(*argv: object) -> int:
    return execute(convert.main, convert.FLAGS, ["checkpoints.convert", *map(str, argv)])


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Greedy instead of nearly optimal: these tests are about files."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (ldlq, scale, ngram_module):
            patch.setattr(module, "search", greedy_search)
        patch.setattr("checkpoints.quantize.find_scale", lambda *_: 0.9)
        patch.setattr(jobs_module, "_EXPERTS", 8)
        patch.setattr(tables, "_ROWS", 500)
        yield


@pytest.fixture(scope="module")
def source(golden):
    return golden / "official_names"


RECIPE = """
[bits]
"*.layers.0.mlp.experts.*.down_proj" = 5
"*.layers.0.mlp.experts.*" = 4
"*.layers.3.self_attn.[qkvo]_proj" = 3.5
"mtp.*.mlp.shared_expert.*" = 6
"lm_head" = 6
[dtypes]
"*.mlp.gate.weight" = "F16"
[ngram_table]
bits = 0
layout = "shards"
[files]
mtp_mixer = "mtp_patch.safetensors"
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Some linears of every kind. Rows of five values fill no words, so the table stays plain."""
    file = tmp_path_factory.mktemp("recipe") / "own.toml"
    file.write_text(RECIPE)
    return file


@pytest.fixture(scope="module")
def pack(source, recipe, tmp_path_factory):
    out = tmp_path_factory.mktemp("packs") / "pack"
    assert run(source, out, "--pad", f"--recipe={recipe}") == 0
    return out


def test_pack_holds_each_linear_at_its_width(pack):
    with open_store(pack) as store:
        assert check(store).mtp_layers == 1
        for name, bits in (
            (f"{EXPERT}down_proj", 5),
            (f"{EXPERT}up_proj", 4),
            ("model.language_model.layers.3.self_attn.q_proj", 3.5),
            ("mtp.layers.0.mlp.shared_expert.gate_proj", 6),
            ("lm_head", 6),
        ):
            info = linear_info(store, name)
            assert (info.bits, info.codebook) == (bits, "mul1")
        assert "model.language_model.layers.0.linear_attn.in_proj_z.weight" in store


def test_layers_are_near_those_of_the_source(source, pack):
    with open_store(source) as plain, open_store(pack) as store:
        units = network_units(check(plain))
        linears = {x.name: x for unit in units for part in unit.parts for x in getattr(part, "linears", lambda: [])()}
        for projection, most in (("down_proj", 0.1), ("gate_proj", 0.1)):
            weight = read_weight(plain, linears[f"{EXPERT}{projection}"])
            found = layer_matrix(store, f"{EXPERT}{projection}")[: weight.shape[0], : weight.shape[1]]
            assert np.sum((found - weight) ** 2) < most * np.sum(weight**2)


def test_plain_tensors_keep_their_values_in_the_dtype_of_the_recipe(source, pack):
    with open_store(source) as plain, open_store(pack) as store:
        gate = "model.language_model.layers.0.mlp.gate.weight"
        assert store.info(gate).dtype == "F16" and np.array_equal(store.read(gate), plain.read(gate).astype(np.float16))
        norm = "model.language_model.layers.0.attn_hyper_connection.hc_norm.weight"
        assert store.info(norm).dtype == "BF16" and np.array_equal(store.read(norm), plain.read(norm))


def test_side_files_index_and_config_are_those_of_a_published_pack(source, pack):
    index = json.loads((pack / "model.safetensors.index.json").read_text())["weight_map"]
    config = json.loads((pack / "config.json").read_text())
    with open_store(pack) as store:
        assert store.info(MIXER).file.name == "mtp_patch.safetensors" and MIXER not in index
        table = [name for name in store.names() if ".ngram_embedding." in name]
        assert {store.info(name).file.name for name in table} == {"ngram_embedding.safetensors"}
        assert not set(table) & set(index)
    assert config["quantization_config"]["quant_method"] == "exl3" and config["quantization_config"]["head_bits"] == 6
    assert "calibration" not in config["quantization_config"]
    assert config["text_config"] == json.loads((source / "config.json").read_text())["text_config"]


def test_report_tells_errors_by_kind(pack):
    report = json.loads((pack / "quantization_report.json").read_text())["linears"]
    down = report["model.language_model.layers.*.mlp.experts.*.down_proj"]
    assert down["bits"] == {"5": down["count"]}
    assert 0 < down["relative_squared_error_mean"] <= down["relative_squared_error_worst"] < 0.2


def test_killed_conversion_ends_as_one_that_was_not(source, recipe, pack, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    real, left = write_module.os.replace, [0]

    def die_now_and_then(old, new):
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        real(old, new)

    out, killed = tmp_path / "out", 0
    monkeypatch.setattr(write_module.os, "replace", die_now_and_then)
    for after in (3, 9, 14, 0):
        left[0] = after
        try:
            assert run(source, out, "--pad", f"--recipe={recipe}") == 0
        except Killed:
            killed += 1
            assert not out.exists()
    assert killed == 3
    names = sorted(file.name for file in pack.iterdir())
    assert sorted(file.name for file in out.iterdir()) == names
    assert all((out / name).read_bytes() == (pack / name).read_bytes() for name in names)


def test_rows_of_a_table_are_near_their_source(source, recipe, tmp_path):
    wide = tmp_path / "wide"
    shutil.copytree(source, wide)
    edit_config(wide, lambda config: config["text_config"].update(ple_embed_dim=256, ngram_vocab_size_base=20))
    _resize_table(wide)
    only_head = tmp_path / "head.toml"
    for layout in ("whole", "shards"):
        only_head.write_text(f'[bits]\n"lm_head" = 4\n[ngram_table]\nbits = 6\nlayout = "{layout}"\n')
        out = tmp_path / layout
        assert run(wide, out, "--pad", f"--recipe={only_head}") == 0
        prefix = "model.language_model.layers.1.ple.ple_embedding."
        with open_store(wide) as plain, open_store(out) as store:
            tables = open_ngram_table(store, prefix), open_ngram_table(plain, prefix)
            found, wanted = (table.lookup(np.arange(int(table.sizes.sum()))).astype(np.float32) for table in tables)
            # The greedy search leaves the first values of a ring to chance.
            assert tables[0].bits == 6 and np.sum((found - wanted)[:, 3:] ** 2) < 0.05 * np.sum(wanted**2)
            assert store.metadata("ngram_embedding.safetensors")["K"] == "6"


def _resize_table(folder):
    """Rows of sixteen values for the config as it is now."""
    config = json.loads((folder / "config.json").read_text())
    prefix = "model.language_model.layers.1.ple.ple_embedding."
    multipliers, sizes, offsets = configured_hash(config["text_config"], 0)
    rows = -(-int(sizes.sum()) // 8) * 8 // 4
    rng = np.random.default_rng(0)

    def edit(tensors):
        for shard in range(4):
            values = rng.standard_normal((rows, 16)).astype(np.float16)
            tensors[f"{prefix}ngram_embedding.shard_{shard}.weight"] = values
        tensors[f"{prefix}ngram_heads_vocab_sizes"], tensors[f"{prefix}ngram_heads_offsets"] = sizes, offsets
        tensors[f"{prefix}layer_multipliers"] = multipliers
        for name in ("key_proj", "value_proj"):
            old = tensors[f"{prefix[:-14]}{name}.weight"]
            tensors[f"{prefix[:-14]}{name}.weight"] = np.zeros((old.shape[0], 256), old.dtype)

    change(folder, edit, f"{prefix}layer_multipliers")


def test_average_is_kept_and_used_up():
    text = full_config()["text_config"] | {"num_experts": 64, "num_hidden_layers": 12}
    text["layer_types"] = text["layer_types"][:12]
    units = network_units(Inventory(PUBLISHED_PREFIX, text, 1, {}, (), ()))
    recipe = read_recipe("flash_next_4.05")
    for wanted in (2.05, 3.05, 4.05, 4.5):
        widths = average_widths(units, recipe, Average(wanted), "mul1")
        assert wanted - 0.06 < average_bits(units, widths) <= wanted
    widths = average_widths(units, recipe, Average(3.05), "mul1")
    layer = f"{PUBLISHED_PREFIX}layers.0."
    assert widths[f"{layer}linear_attn.out_proj"] > 3 and widths[f"{layer}mlp.experts.0.up_proj"] == 3
    assert widths["lm_head"] == 6 and widths["mtp.layers.0.mlp.experts.63.up_proj"] == 4


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("model.layers.3.self_attn.indexer.index_qk_proj", "model.layers.3.mixer"),
        ("model.layers.3.self_attn.q_proj", "model.layers.3.mixer"),
        ("model.layers.3.self_attn.o_proj", "model.layers.3.self_attn.o_proj"),
        ("mtp.layers.0.mlp.experts.12.gate_proj", "mtp.layers.0.mlp"),
        ("mtp.layers.0.mlp.experts.12.down_proj", "mtp.layers.0.mlp.experts.12.down_proj"),
    ],
)
def test_linears_that_read_the_same_rows_are_known(name, inputs):
    assert inputs_of(name) == inputs


def refusal(capsys, *argv: object) -> str:
    assert run(*argv) == EXIT_CHECKPOINT
    return capsys.readouterr().err


def test_sizes_that_need_padding_are_refused_unless_asked_for(source, recipe, tmp_path, capsys):
    message = refusal(capsys, source, tmp_path / "out", f"--recipe={recipe}")
    assert "--pad" in message and "no multiples of 128" in message and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--bits=9"], "from 1.0 to 8.0"),
        (["--bits=3", "--codebook=mcg", "--head_bits=2.5"], "lm_head: 2.5 bits with codebook mcg"),
        (["--bits=3", "--ngram_bits=6"], "do not fill 16-bit words"),
        (["--recipe=nothing"], "no recipe 'nothing'"),
        (["--recipe=/nowhere/x.toml"], "cannot read"),
    ],
)
def test_widths_that_do_not_exist_are_refused_before_the_work(source, tmp_path, capsys, flags, message):
    assert message in refusal(capsys, source, tmp_path / "out", "--pad", *flags)
    assert not list(tmp_path.iterdir())


def test_source_without_a_tensor_is_refused(source, recipe, tmp_path, capsys):
    shutil.copytree(source, tmp_path / "source")
    drop(tmp_path / "source", "model.language_model.layers.0.linear_attn.out_proj.weight")
    message = refusal(capsys, tmp_path / "source", tmp_path / "out", "--pad", f"--recipe={recipe}")
    assert "out_proj.weight: missing" in message


@pytest.mark.parametrize("name", ["layers.0.mlp.experts.down_proj", "layers.2.linear_attn.A_log"])
def test_weight_that_is_not_finite_is_named(source, recipe, tmp_path, capsys, name):
    shutil.copytree(source, tmp_path / "source")
    name = f"{PUBLISHED_PREFIX}{name}"
    change(tmp_path / "source", lambda tensors: tensors[name].reshape(-1).view(np.uint16).__setitem__(0, 0x7F80), name)
    message = refusal(capsys, tmp_path / "source", tmp_path / "out", "--pad", f"--recipe={recipe}")
    assert name.rpartition(".")[0] in message and "not finite" in message and not (tmp_path / "out").exists()


def test_quantised_source_is_refused(pack, recipe, tmp_path, capsys):
    assert "quantised already" in refusal(capsys, pack, tmp_path / "out", "--pad", f"--recipe={recipe}")


def test_recipe_and_average_together_are_refused(source, tmp_path):
    assert run(source, tmp_path / "out", "--recipe=flash_next_4.05", "--bits=3") == EXIT_USAGE


def test_recipe_without_widths_is_refused(source, tmp_path, capsys):
    (tmp_path / "empty.toml").write_text("[dtypes]\n")
    assert "no recipe" in refusal(capsys, source, tmp_path / "out", f"--recipe={tmp_path / 'empty.toml'}")
