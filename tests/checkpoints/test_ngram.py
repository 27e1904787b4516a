"""Rows of the n-gram table, against worked examples and golden arrays, in every way a table may be stored."""

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from checkpoints.ngram import decode_rows, mul1_values, open_ngram_table, row_states
from checkpoints.ngram_hash import row_ids
from tests.checkpoints.ngram_tables import (
    BITS,
    DIM,
    MULTIPLIERS,
    OFFSETS,
    PREFIX,
    ROWS,
    SIZES,
    TABLE,
    codec_rows,
    exl3_tensors,
    plain_rows,
    plain_tensors,
    stored,
    windows,
)


@pytest.mark.parametrize("bits", [5, 6])
def test_golden_rows_decode_bit_for_bit(golden, bits):
    arrays = load_file(golden / "exl3" / "ngram.safetensors")
    rows, bias = arrays[f"k{bits}.rows"], arrays["head_bias"][arrays[f"k{bits}.head"]]
    np.testing.assert_array_equal(row_states(rows[:, 1:], bits), arrays[f"k{bits}.states"])
    decoded = decode_rows(rows, bias, bits, mul1_values())
    assert decoded.dtype == np.float32
    assert decoded.tobytes() == arrays[f"k{bits}.decoded_fp32"].tobytes()
    assert decoded.astype(np.float16).tobytes() == arrays[f"k{bits}.decoded_fp16"].tobytes()


def test_mul1_codebook_is_the_golden_one(golden):
    (table,) = (t for name, t in load_file(golden / "exl3" / "codebooks.safetensors").items() if "mul1" in name)
    assert mul1_values().astype(np.float16).tobytes() == table.tobytes()


def test_worked_example_of_a_ring_at_six_bits():
    words = ((np.arange(61) * 0x1357 + 0x2468) & 0xFFFF).astype(np.uint16)
    words[0] = 0x2266
    row = words.view(np.int16)[None]
    states = row_states(row[:, 1:], 6)[0]
    assert [hex(s) for s in states[:4].tolist()] == ["0xcaff", "0xbfde", "0xf7a3", "0xe8c5"] and states[159] == 0x232B
    decoded = decode_rows(row, np.zeros((1, 160), np.float16), 6, mul1_values())[0, :4]
    np.testing.assert_allclose(decoded, [0.00615084, -0.00763363, -0.00670613, 0.00987308], rtol=2e-6)


def pack(symbols: np.ndarray, bits: int) -> np.ndarray:
    """Symbols, each least significant bit first, into int16 words: the inverse of reading a ring."""
    stream = (symbols[:, None] >> np.arange(bits)) & 1
    return np.packbits(stream.reshape(-1).astype(np.uint8), bitorder="little").view(np.int16)


def test_worked_example_of_packed_symbols():
    words = pack((7 * np.arange(160) + 3) % 64, 6)
    assert words.view(np.uint16)[:4].tolist() == [4739, 40801, 53977, 37051]
    assert row_states(words[None], 6)[0, :4].tolist() == [22275, 49354, 12945, 42072]
    assert mul1_values()[[22275, 49354, 12945, 42072, 0]].tolist() == [
        0.92529296875, 0.16064453125, 0.8642578125, 1.5546875, -3.453125,
    ]  # fmt: skip


@pytest.mark.parametrize("bits", range(1, 9))
def test_states_are_symbols_over_their_predecessors_round_the_ring(bits):
    symbols = np.random.default_rng(bits).integers(0, 1 << bits, 32)
    expected = [sum(int(symbols[(i - j) % 32]) << (bits * j) for j in range(16)) & 0xFFFF for i in range(32)]
    assert row_states(pack(symbols, bits)[None], bits)[0].tolist() == expected


IDS = np.array([[0, 7, 18, 31], [6, 17, 30, 47], [0, 19, 20, 31], [47, 47, 0, 6]])


@pytest.mark.parametrize("splits", [(48,), (20, 28), (0, 16, 16, 16), (4,) * 12])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_plain_rows_come_in_their_stored_bits_however_split(tmp_path, splits, dtype):
    table = open_ngram_table(stored(tmp_path, plain_tensors(splits, dtype)), PREFIX)
    assert (table.rows, table.row_dim, table.bits, table.dtype) == (ROWS, DIM, 0, np.dtype(dtype))
    found = table.lookup(IDS)
    assert found.dtype == np.dtype(dtype) and found.shape == (4, 4, DIM)
    assert found.tobytes() == plain_rows(dtype)[IDS].tobytes()


def test_shards_are_ordered_by_number_and_not_by_name(golden, tmp_path):
    tensors = plain_tensors((4,) * 12)
    assert sorted(tensors) != sorted(tensors, key=lambda name: (len(name), name))
    np.testing.assert_array_equal(
        open_ngram_table(stored(tmp_path, tensors), PREFIX).lookup(np.arange(ROWS)), plain_rows()
    )


@pytest.mark.parametrize("sharded", [False, True])
def test_exl3_rows_are_decoded_with_the_bias_of_their_head(tmp_path, sharded):
    tensors = exl3_tensors(sharded)
    table = open_ngram_table(stored(tmp_path, tensors), PREFIX)
    assert (table.rows, table.row_dim, table.bits, table.dtype) == (ROWS, DIM, BITS, np.dtype(np.float16))
    head = [max(h for h in range(4) if OFFSETS[h] <= row) for row in range(ROWS)]
    expected = decode_rows(codec_rows(), tensors[TABLE + "head_bias"][head], BITS, mul1_values()).astype(np.float16)
    assert table.lookup(IDS).tobytes() == expected[IDS].tobytes()


def test_hash_constants_are_found_under_the_names_of_both_layouts(tmp_path):
    for tensors in (plain_tensors(), exl3_tensors(True)):
        table = open_ngram_table(stored(tmp_path, tensors), PREFIX)
        for found, expected in zip(
            (table.multipliers, table.sizes, table.offsets), (MULTIPLIERS, SIZES, OFFSETS), strict=True
        ):
            np.testing.assert_array_equal(found, expected)
        tokens = windows([3, 1, 4, 1, 5])
        np.testing.assert_array_equal(table.row_ids(tokens, 4), row_ids(tokens, 4, MULTIPLIERS, SIZES, OFFSETS))


@pytest.mark.parametrize("cache_rows", [1, 5, 1000])
@pytest.mark.parametrize("tensors", [plain_tensors(), exl3_tensors(True)])
def test_cache_changes_no_value(tmp_path, tensors, cache_rows):
    store = stored(tmp_path, tensors)
    plain, cached = open_ngram_table(store, PREFIX), open_ngram_table(store, PREFIX, cache_rows=cache_rows)
    for seed in range(6):
        ids = np.random.default_rng(seed).integers(0, ROWS, (3, 4))
        assert cached.lookup(ids).tobytes() == plain.lookup(ids).tobytes()


def test_cache_saves_reads_and_forgets_the_least_recently_used(tmp_path, monkeypatch):
    store = stored(tmp_path, plain_tensors())
    asked: list[int] = []
    read_rows = store.read_rows
    monkeypatch.setattr(store, "read_rows", lambda name, rows: asked.extend(rows.tolist()) or read_rows(name, rows))
    table = open_ngram_table(store, PREFIX, cache_rows=2)
    for ids, read in (([3], [3]), ([5], [5]), ([3], []), ([7], [7]), ([3], []), ([5], [5])):
        asked.clear()
        table.lookup(np.array(ids))
        assert asked == read


def test_threads_share_one_cache(tmp_path):
    table = open_ngram_table(stored(tmp_path, plain_tensors()), PREFIX, cache_rows=7)
    batches = [np.random.default_rng(seed).integers(0, ROWS, (2, 4)) for seed in range(100)]
    with ThreadPoolExecutor(8) as pool:
        for ids, found in zip(batches, pool.map(table.lookup, batches), strict=True):
            assert found.tobytes() == plain_rows()[ids].tobytes()


@pytest.mark.parametrize("ids", [[-1], [ROWS], [0, 2**40]])
def test_ids_out_of_range_are_refused(tmp_path, ids):
    with pytest.raises(IndexError, match=f"the table has {ROWS}"):
        open_ngram_table(stored(tmp_path, plain_tensors()), PREFIX).lookup(np.array(ids))


def test_lookup_of_nothing_is_empty(tmp_path):
    for tensors in (plain_tensors(), exl3_tensors(False)):
        assert open_ngram_table(stored(tmp_path, tensors), PREFIX).lookup(np.zeros((0, 4), int)).shape == (0, 4, DIM)


def test_opening_a_table_reads_none_of_its_rows(tmp_path, monkeypatch):
    store = stored(tmp_path, exl3_tensors(True))
    read, names = store.read, []
    monkeypatch.setattr(store, "read", lambda name: names.append(name) or read(name))
    open_ngram_table(store, PREFIX)
    assert sorted(names) == sorted(
        TABLE + n for n in ("layer_multipliers", "head_vocab_sizes", "head_offsets", "head_bias")
    )


def test_row_with_a_corrupt_scale_is_not_finite_and_touches_no_other(tmp_path):
    rows = codec_rows()
    rows[5, 0] = np.array(np.inf, np.float16).view(np.int16)
    table = open_ngram_table(stored(tmp_path, exl3_tensors(False, {"trellis": rows})), PREFIX)
    clean = open_ngram_table(stored(tmp_path, exl3_tensors(False)), PREFIX)
    found = table.lookup(np.arange(ROWS))
    assert not np.isfinite(found[5]).any()
    others = np.delete(np.arange(ROWS), 5)
    assert found[others].tobytes() == clean.lookup(others).tobytes()
