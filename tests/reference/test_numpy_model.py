"""The NumPy oracle against the golden arrays of the public reference model."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.reference import numpy_exl3, numpy_layers
from tests.reference.numpy_model import NumpyModel, State
from tests.reference.numpy_weights import load_tensors

CASES = ("base", "silu_two_ple", "long_eos", "official_names", "four_ranks")


@pytest.fixture(scope="module", params=CASES)
def case(request, golden):
    folder = golden / request.param
    config = json.loads((folder / "config.json").read_text())
    return NumpyModel(config, load_tensors(folder)), load_file(folder / "golden.safetensors")


def prompts(arrays):
    return sorted(name.split(".")[0] for name in arrays if name.endswith(".input_ids"))


def assert_close(found, wanted, limit=1e-4):
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= limit * np.abs(wanted).max()


def test_forward_matches_reference_logits_and_inner_values(case):
    model, arrays = case
    for p in prompts(arrays):
        taps: dict[str, np.ndarray] = {}
        logits = model.forward(arrays[f"{p}.input_ids"].tolist(), taps=taps)
        assert_close(logits, arrays[f"{p}.fp32.logits"])
        assert_close(taps["streams"].reshape(len(logits), -1), arrays[f"{p}.fp32.streams_final"])
        assert_close(taps["final_hidden"], arrays[f"{p}.fp32.final_hidden"])
        kept = arrays[f"{p}.positions"]
        for i in range(model.cfg.depth):
            assert_close(taps[f"hidden.{i}"].reshape(len(logits), -1)[kept], arrays[f"{p}.fp32.hidden.{i}"])
            assert np.array_equal(taps[f"router_ids.{i}"], arrays[f"{p}.fp32.router_ids.{i}"])
            if f"{p}.fp32.qsa_mask.{i}" in arrays:
                assert np.array_equal(taps[f"mask.{i}"], arrays[f"{p}.fp32.qsa_mask.{i}"].astype(bool))
            if f"{p}.ngram_ids.{i}" in arrays:
                assert np.array_equal(taps[f"ngram_ids.{i}"], arrays[f"{p}.ngram_ids.{i}"])


def test_greedy_tokens_equal_the_reference(case):
    model, arrays = case
    for p in prompts(arrays):
        wanted = arrays[f"{p}.fp32.greedy_ids"].tolist()
        assert model.greedy(arrays[f"{p}.input_ids"].tolist(), len(wanted)) == wanted


def test_draft_head_matches_reference_over_prompt_chain_and_second_round(case):
    model, arrays = case
    for p in (p for p in prompts(arrays) if f"{p}.mtp.logits" in arrays):
        ids, more = arrays[f"{p}.input_ids"].tolist(), arrays[f"{p}.fp32.greedy_ids"].tolist()[:4]
        taps: dict[str, np.ndarray] = {}
        model.forward(ids + more, taps=taps)
        rows, tokens, cache = taps["streams"], ids + more, {}
        T = len(ids)
        for name, first, last in (("", 0, T), ("round2_", T, T + 3)):
            logits, X = model.mtp(rows[first:last], tokens[first + 1 : last + 1], cache)
            assert_close(logits, arrays[f"{p}.mtp.{name}logits"])
            drafts, seen = model.draft(logits[-1], X[-1], cache, 4)
            assert drafts == arrays[f"{p}.mtp.{name}drafts"].tolist()
            assert_close(seen, arrays[f"{p}.mtp.{name}draft_logits"])


def test_prompt_in_pieces_equals_prompt_at_once(case):
    model, arrays = case
    ids, state = arrays["p0.input_ids"].tolist(), State()
    whole = model.forward(ids)
    pieces = [model.forward(ids[a:b], state) for a, b in ((0, 1), (1, 8), (8, len(ids)))]
    assert_close(np.concatenate(pieces), whole, 1e-11)


def test_decoded_layers_match_golden_outputs(golden):
    arrays = load_file(golden / "exl3" / "linear.safetensors")
    names = sorted(name.split("/")[0] for name in arrays if name.endswith("/y64"))
    assert len(names) == 12
    for name in names:
        weight = numpy_exl3.layer_matrix(arrays, name)
        x = arrays[f"{name}/x"].astype(np.float64)
        y = x @ weight[: x.shape[-1]] + (arrays[f"{name}.bias"].astype(np.float64) if f"{name}.bias" in arrays else 0)
        assert_close(y, arrays[f"{name}/y64"], 1e-12)


@pytest.mark.parametrize("width", ["k5", "k6"])
def test_decoded_ngram_rows_equal_golden_bits(golden, width):
    arrays = load_file(golden / "exl3" / "ngram.safetensors")
    words = arrays[f"{width}.rows"]
    assert np.array_equal(numpy_exl3.ngram_states(words, 160), arrays[f"{width}.states"])
    rows = numpy_exl3.ngram_rows(words, arrays["head_bias"][arrays[f"{width}.head"]])
    assert np.array_equal(rows.view(np.uint16), arrays[f"{width}.decoded_fp16"].view(np.uint16))


def test_ngram_row_ids_equal_golden_ids(golden):
    arrays = load_file(golden / "exl3" / "ngram.safetensors")
    constants = [arrays[name].tolist() for name in ("layer_multipliers", "head_vocab_sizes", "head_offsets")]
    facts, tokens = SimpleNamespace(ngram_size=3, ngram_heads=16, eos=int(arrays["eos"])), arrays["tokens"].tolist()
    found = numpy_layers.ngram_ids(tokens, len(tokens), facts, tuple(constants))
    assert np.array_equal(found, arrays["row_ids"])


def test_hash_constants_of_the_full_model_equal_the_published_ones():
    facts = SimpleNamespace(vocab=248320, seed=1234, ngram_size=3, ngram_heads=16, ngram_base=20_000_000)
    multipliers, sizes, offsets = numpy_layers.hash_constants(facts, 0)
    assert multipliers == [23703573157769, 20109073645365, 8052911324071]
    assert (sizes[0], sizes[-1], offsets[-1]) == (20000003, 20000171, 300001275)


def test_decoded_tiles_equal_golden_bits(golden):
    tiles = load_file(golden / "exl3" / "tiles.safetensors")
    for name in (name[: -len(".trellis")] for name in tiles if name.endswith(".trellis")):
        assert np.array_equal(numpy_exl3.states(tiles[f"{name}.trellis"]), tiles[f"{name}.states"]), name
        wq = numpy_exl3.inner_matrix(tiles[f"{name}.trellis"], name.split(".")[0])
        assert np.array_equal(wq.view(np.uint16), tiles[f"{name}.wq"].view(np.uint16)), name
