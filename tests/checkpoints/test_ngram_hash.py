"""Row ids of the n-gram table, against worked examples and golden arrays."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from checkpoints import open_store
from checkpoints.ngram import open_ngram_table
from checkpoints.ngram_hash import context, derive_hash, row_ids
from tests.checkpoints.ngram_tables import windows

EOS = 248044
FULL = {"vocab_size": 248320, "seed": 1234, "ngram_size": 3, "heads_per_ngram": 8, "base": 20_000_000}
FULL_PRIMES = [20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
               20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171]  # fmt: skip


def full_ids(tokens: list[int]) -> list[list[int]]:
    multipliers, sizes, offsets = derive_hash(layer_q=0, **FULL)
    return row_ids(windows(tokens), EOS, multipliers, sizes, offsets).tolist()


def test_full_size_hash_is_derived_from_the_config():
    multipliers, sizes, offsets = derive_hash(layer_q=0, **FULL)
    assert multipliers.tolist() == [23703573157769, 20109073645365, 8052911324071]
    assert sizes.tolist() == FULL_PRIMES
    assert offsets[:4].tolist() == [0, 20000003, 40000026, 60000059] and offsets[15] == 300001275
    assert sizes.sum() == 320001446
    assert {a.dtype for a in (multipliers, sizes, offsets)} == {np.dtype(np.int64)}


def test_second_table_takes_the_next_primes_and_other_multipliers():
    multipliers, sizes, offsets = derive_hash(layer_q=1, **FULL)
    assert multipliers.tolist() == [3352040966061, 19752442147475, 10742103100073]
    assert sizes[0] == 20000213 and offsets[0] == 0


def test_primes_from_a_tiny_base_begin_at_two():
    assert derive_hash(100, 0, 0, 2, 12, 0)[1].tolist() == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37]
    assert derive_hash(100, 0, 0, 2, 4, 25)[1].tolist() == [29, 31, 37, 41]


def test_worked_example_of_three_tokens():
    first, _, third = full_ids([100, 200, 300])
    assert first == [
        5727835, 21884476, 43702108, 66434789, 84094509, 104112171, 134886528, 157314943,
        162363667, 189466439, 200618315, 232121522, 258547276, 266199001, 289022207, 305180972,
    ]  # fmt: skip
    assert third == [
        6129193, 20484628, 57667260, 77728366, 86357215, 109234597, 123551585, 149309416,
        172664702, 184433127, 201501905, 227445817, 243341740, 279238932, 284538191, 311036336,
    ]  # fmt: skip


def test_worked_example_of_an_eos_between_equal_tokens():
    first, eos, third = full_ids([9707, EOS, 9707])
    assert first == third
    assert first == [
        16410909, 39682429, 55103279, 60931720, 87006904, 116506179, 131512017, 152932897,
        169641436, 182022480, 209277433, 237891023, 256841529, 277007269, 290665954, 300984276,
    ]  # fmt: skip
    assert eos == [
        13256830, 36293698, 52307262, 75760785, 91967280, 118328464, 138769205, 154368323,
        166762559, 197966928, 202464600, 234986177, 250473237, 266901715, 299253959, 302582921,
    ]  # fmt: skip


def test_worked_example_of_a_small_table():
    multipliers, sizes, offsets = derive_hash(128, 1234, 0, 3, 8, 100)
    assert multipliers.tolist() == [40323955908725927, 35454616657218691, 55314113489879455]
    assert (sizes[0], sizes[1], sizes[15]) == (101, 103, 179)
    ids = row_ids(windows([10, 11, 5, 12]), 5, multipliers, sizes, offsets)
    assert ids[-1].tolist() == [58, 187, 206, 377, 527, 558, 730, 817, 972, 1183, 1302, 1397, 1535, 1850, 1939, 2197]


def test_everything_behind_an_eos_reads_as_eos():
    tokens = np.array([[7, 5, 9], [5, 7, 9], [7, 9, 5], [7, 9, -1], [7, -1, -1]], np.int32)
    expected = [[7, 5, 5], [5, 7, 9], [7, 9, 5], [7, 9, 5], [7, 5, 5]]
    assert context(tokens, 5).tolist() == expected and context(tokens, 5).dtype == np.int64


def test_row_of_ids_depends_on_its_own_tokens_alone():
    multipliers, sizes, offsets = derive_hash(layer_q=0, **FULL)
    tokens = windows([1, 2, EOS, 3, 4, 5])
    together = row_ids(tokens, EOS, multipliers, sizes, offsets)
    for i in range(len(tokens)):
        np.testing.assert_array_equal(row_ids(tokens[i : i + 1], EOS, multipliers, sizes, offsets)[0], together[i])
    assert row_ids(tokens[:0], EOS, multipliers, sizes, offsets).shape == (0, 16)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.zeros((2, 2), np.int64), r"integers \[B, 3\]"),
        (np.zeros(3, np.int64), r"integers \[B, 3\]"),
        (np.zeros((2, 3)), r"integers \[B, 3\]"),
        (np.array([[-1, 2, 3]]), "column 0"),
    ],
)
def test_tokens_of_another_form_are_the_callers_error(tokens, message):
    with pytest.raises(ValueError, match=message):
        row_ids(tokens, EOS, *derive_hash(100, 0, 0, 3, 2, 5))
    with pytest.raises(ValueError, match="do not divide"):
        row_ids(np.zeros((1, 4), np.int64), EOS, np.ones(4, np.int64), np.ones(4, np.int64), np.ones(4, np.int64))


@pytest.mark.parametrize("case", ["base", "long_eos", "official_names", "silu_two_ple"])
def test_golden_models_hash_as_the_reference_does(golden, case):
    expected = load_file(golden / case / "golden.safetensors")
    config = json.loads((golden / case / "config.json").read_text())
    eos = config.get("text_config", config)["eos_token_id"]
    checked = 0
    with open_store(golden / case) as store:
        prefix = "model.language_model." if case == "official_names" else "model."
        for name in expected:
            prompt, _, layer = name.partition(".ngram_ids.")
            if layer:
                table = open_ngram_table(store, f"{prefix}layers.{layer}.ple.ple_embedding.")
                ids = table.row_ids(windows(expected[f"{prompt}.input_ids"]), eos)
                np.testing.assert_array_equal(ids, expected[name])
                checked += 1
    assert checked >= 1


def test_golden_sequence_hashes_to_its_row_ids(golden):
    arrays = load_file(golden / "exl3" / "ngram.safetensors")
    constants = (arrays[name] for name in ("layer_multipliers", "head_vocab_sizes", "head_offsets"))
    ids = row_ids(windows(arrays["tokens"]), int(arrays["eos"]), *constants)
    np.testing.assert_array_equal(ids, arrays["row_ids"])
