"""Hessians are the second moments of what linears read, whatever run took the rows as far as they are."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints import convert, open_store
from checkpoints.commands import execute
from checkpoints.converter.dequantise import layer_matrix
from checkpoints.converter.jobs import inputs_of
from checkpoints.converter.units import network_units
from checkpoints.converter.widths import part_linears
from checkpoints.inventory import check
from checkpoints.naming import read_expert
from checkpoints.quantiser import ldlq, ngram, scale
from fnx_jax.calibration import LayerByLayer, calibrator
from fnx_jax.families.flash_next.load import open_ngrams
from fnx_jax.families.flash_next.sequence.statistics import moments
from fnx_jax.families.history import token_history
from fnx_jax.token_rows import read_token_rows
from tests.checkpoints.greedy_search import greedy_search
from tests.fnx_jax.cases import FOLDER, distance
from tests.fnx_jax.families.sequence_model import sequence_model

CASE = FOLDER / "base"
TOKENS = np.random.default_rng(0).integers(6, 128, (2, 40)).astype(np.int32)
PREFIX = "model.layers."


class Run:
    """Every unit in turn; the source's own file stands for the one that was written."""

    def __init__(self, folder: Path):
        self.store = open_store(CASE)
        self.inventory = check(self.store)
        self.units = network_units(self.inventory)
        self.work: LayerByLayer = calibrator(self.store, self.inventory, TOKENS, folder)
        self.found: dict[str, dict[str, np.ndarray]] = {}

    def until(self, last: str) -> "Run":
        for unit in sorted(self.units, key=lambda unit: not unit.name.startswith("table")):
            self.found[unit.name] = dict(self.work.hessians(unit))
            self.work.end(unit, CASE / "model.safetensors")
            if unit.name == last:
                break
        return self


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("streams")).until("draft")


@pytest.fixture(scope="module")
def inputs(run):
    """What the mixer and the experts of layer 3 read, and what the head does."""
    model = sequence_model("base", exact=False)
    f, tables = model.functions, open_ngrams(run.store, model.config)

    @jax.jit
    def network(params, token_T, ngram_TLE):
        x = f.embed(params, token_T)
        for number in range(3):
            x = f.layer(x, params.layers[number], ngram_TLE[:, 0] if number in model.config.ngram_layers else None)
        mixed, gate = f.read(x, params.layers[3].mixer_hyper)
        after = f.write(x, f.mix(mixed, params.layers[3].mixer), gate)
        read = f.read(after, params.layers[3].moe_hyper)[0]
        return mixed, read, f.read_only(f.streams(params, token_T, ngram_TLE), params.mixer)

    rows = [(t, tables.embeddings(t, token_history(t, model.config.ngram_size - 1))) for t in TOKENS]
    mixed, read, last = zip(*(network(model.params, *row) for row in rows), strict=True)
    return model, model.params.layers[3], mixed, np.concatenate(read), np.concatenate(last)


def second_moment(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x.T @ x / len(x)


def test_every_quantised_linear_has_its_inputs(run):
    for unit in run.units:
        for linear in (x for part in unit.parts for x in part_linears(part)):
            projection = linear.name.rpartition(".")[2]
            if projection.endswith("_proj") or linear.name.startswith(("mtp.fc", "lm_head")):
                if projection not in ("key_proj", "value_proj"):
                    hessian = run.found[unit.name][inputs_of(linear.name)]
                    assert hessian.shape == (linear.shape[1],) * 2 and np.isfinite(hessian).all()


def test_mixer_reads_the_rows_of_all_sequences(run, inputs):
    found = run.found["layer 3"][f"{PREFIX}3.mixer"]
    assert distance(found, second_moment(np.concatenate(inputs[2]))) < 2e-3


def test_output_projection_reads_what_the_mixer_puts_out_before_it(run, inputs):
    model, layer, mixed, _, _ = inputs
    size = model.config.heads * model.config.head_size
    whole = replace(layer.mixer, o=jnp.eye(size, dtype=jnp.float32))
    f = jax.jit(replace(model.functions, config=replace(model.config, hidden=size)).sparse_attention)
    values = np.concatenate([np.asarray(f(x, whole)) for x in mixed])
    assert distance(run.found["layer 3"][f"{PREFIX}3.self_attn.o_proj"], second_moment(values)) < 2e-3


def test_expert_reads_only_rows_that_picked_it(run, inputs):
    model, layer, _, x, _ = inputs
    expert_TA = np.asarray(jax.jit(model.functions.picks)(jnp.asarray(x), layer.moe)[0])
    found = run.found["layer 3"]
    assert distance(found[f"{PREFIX}3.mlp"], second_moment(x)) < 2e-3
    for e in (0, 7, 15):
        gate, up = (read_expert(run.store, f"{PREFIX}3.", e, p).astype(np.float32) for p in ("gate_proj", "up_proj"))
        rows = x[(expert_TA == e).any(axis=1)]
        hidden = rows @ gate.T / (1 + np.exp(-rows @ gate.T)) * (rows @ up.T)
        wanted = second_moment(hidden) if len(rows) else np.zeros((gate.shape[0],) * 2)
        # Rows are rounded to the weights' bfloat16 before they are multiplied.
        assert distance(found[f"{PREFIX}3.mlp.experts.{e}.down_proj"], wanted) < 3e-2


def test_head_reads_what_the_network_ends_with(run, inputs):
    assert distance(run.found["head"]["lm_head"], second_moment(inputs[4])) < 2e-3


def test_run_that_is_taken_up_finds_the_same(run, tmp_path):
    Run(tmp_path).until("layer 2")
    again = Run(tmp_path)
    seen: list[int] = []
    keep = again.work._keep
    again.work._keep = lambda depth, rows: (seen.append(depth), keep(depth, rows))  # type: ignore[method-assign]
    for unit in sorted(again.units, key=lambda unit: not unit.name.startswith("table")):
        if unit.name in ("layer 3", "layer 4"):
            found = again.work.hessians(unit)
            assert all(np.array_equal(found[key], run.found[unit.name][key]) for key in found)
        again.work.end(unit, CASE / "model.safetensors")
        if unit.name == "layer 4":
            break
    assert seen == [4, 5]


def test_conversion_weighs_errors_by_the_calibration_rows(run, tmp_path, monkeypatch):
    """Its head's errors are smaller where its inputs are loud, and the pack says what it was calibrated with."""
    for module in (ldlq, scale, ngram):
        monkeypatch.setattr(module, "search", greedy_search)
    np.save(tmp_path / "ids.npy", TOKENS)
    (tmp_path / "own.toml").write_text(
        '[bits]\n"lm_head" = 3\n"*layers.3.self_attn.o_proj" = 3\n[ngram_table]\nbits = 0\n'
    )
    calibration = [f"--calibration={tmp_path / 'ids.npy'}", "--calibration_columns=40"]
    errors = []
    for name, flags in (("plain", []), ("weighed", calibration)):
        argv = ["convert", str(CASE), str(tmp_path / name), "--pad", f"--recipe={tmp_path / 'own.toml'}", *flags]
        assert execute(convert.main, convert.FLAGS, argv) == 0
        with open_store(CASE) as source, open_store(tmp_path / name) as pack:
            wanted = source.read("lm_head.weight").astype(np.float32).T
            errors.append(layer_matrix(pack, "lm_head")[: wanted.shape[0], : wanted.shape[1]] - wanted)
            assert ("calibration" in pack.config["quantization_config"]) == bool(flags)
    assert pack.config["quantization_config"]["calibration"] == {"rows": 2, "cols": 40}
    hessian = run.found["head"]["lm_head"]
    plain, weighed = (np.sum(error * (hessian @ error)) for error in errors)
    assert weighed < 0.8 * plain


def test_rows_that_are_not_finite_count_nowhere():
    x = np.ones((3, 2), np.float32)
    x[1, 0] = np.nan
    found = jax.jit(moments)(x)
    assert float(found.rows) == 2 and np.array_equal(np.asarray(found.sum), np.full((2, 2), 2, np.float32))


def test_token_rows_are_cut_from_all_files(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(7))
    np.save(tmp_path / "b.npy", np.arange(7, 12))
    files = [tmp_path / "a.npy", tmp_path / "b.npy"]
    assert read_token_rows(files, tmp_path, 0, 5, 128).tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert len(read_token_rows(files, tmp_path, 1, 5, 128)) == 1


@pytest.mark.parametrize(
    ("ids", "columns", "message"),
    [([1, 2, 3], 4, "fill no row of 4"), ([1, 500], 1, "token id 500"), ([0.5], 1, "token ids were wanted")],
)
def test_token_rows_that_make_no_sense_are_refused(tmp_path, ids, columns, message):
    np.save(tmp_path / "a.npy", np.array(ids))
    with pytest.raises(ValueError, match=message):
        read_token_rows([tmp_path / "a.npy"], tmp_path, 0, columns, 128)
