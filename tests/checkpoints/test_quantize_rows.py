"""Rows of an n-gram table come back through the format's decoder, with their head's bias."""

import numpy as np
import pytest

from checkpoints.quantiser.ngram import pack_rows
from checkpoints.quantize import quantize_rows
from pallas_kernels.exl3.ngram import decode_rows_numpy
from tests.reference import numpy_exl3 as oracle

DIM = 160
REACHABLE = {4: 0.0046, 6: 0.0003}


def rows(count: int = 8) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.standard_normal((count, DIM)) * np.geomspace(0.001, 0.1, count)[:, None]).astype(np.float32)


def share(error: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.mean(np.sum(error**2, axis=1) / np.sum(wanted**2, axis=1)))


@pytest.mark.parametrize("bits", REACHABLE)
def test_gaussian_rows_come_back_as_close_as_the_format_allows(bits):
    packed = quantize_rows(rows(), bits)
    assert packed.dtype == np.int16 and packed.shape == (8, 1 + 10 * bits)
    assert share(decode_rows_numpy(packed, bits, DIM) - rows(), rows()) < REACHABLE[bits]


def test_biases_are_added_again_by_the_reader():
    bias = np.random.default_rng(1).standard_normal((3, DIM)).astype(np.float16)
    head = np.array([0, 0, 1, 1, 1, 2, 2, 2])
    packed = quantize_rows(rows() + bias[head].astype(np.float32), 4, bias, head)
    decoded = decode_rows_numpy(packed, 4, DIM)
    assert share(decoded - rows(), rows()) < 1.1 * REACHABLE[4]
    assert np.array_equal(oracle.ngram_rows(packed, bias[head]), (decoded + bias[head]).astype(np.float16))


def test_symbols_lie_in_the_words_as_the_format_reads_them():
    states = oracle.ngram_states(np.random.default_rng(0).integers(-(2**15), 2**15, (4, 51)).astype(np.int16), DIM)
    packed = pack_rows(states.astype(np.uint16), 5)
    assert np.array_equal(oracle.ngram_states(np.concatenate([np.zeros((4, 1), np.int16), packed], 1), DIM), states)


def test_outliers_land_on_the_codebook():
    spiky = rows()
    spiky[:, 7] = 6 * np.abs(spiky).std(axis=1)
    error = decode_rows_numpy(quantize_rows(spiky, 6), 6, DIM) - spiky
    assert np.all(np.abs(error[:, 7]) < 0.1 * spiky[:, 7])


def test_a_row_that_is_its_bias_has_scale_0():
    bias = np.ones((1, DIM), np.float16)
    packed = quantize_rows(np.ones((2, DIM), np.float32), 4, bias, np.zeros(2, np.int64))
    assert not decode_rows_numpy(packed, 4, DIM).any()


def test_no_rows_are_no_rows():
    assert quantize_rows(np.zeros((0, DIM), np.float32), 4).shape == (0, 41)


BIAS = np.zeros((2, DIM), np.float16)


@pytest.mark.parametrize(
    ("given", "bits", "bias", "head", "message"),
    [
        (rows(), 2.5, None, None, "bits 1 to 8"),
        (rows()[:, :15], 4, None, None, "15 values of 4 bits"),
        (rows()[0], 4, None, None, r"rows \[160\]"),
        (rows() * np.inf, 4, None, None, "not finite"),
        (rows() * np.float32(1e9), 4, None, None, "too large for a float16 scale"),
        (rows(), 4, BIAS, None, "need the head of each row"),
        (rows(), 4, BIAS[:, :8], np.zeros(8, int), r"biases \[2, 8\]"),
        (rows(), 4, BIAS, np.full(8, 2), r"outside \[0, 2\)"),
    ],
)
def test_what_cannot_be_written_is_named(given, bits, bias, head, message):
    with pytest.raises(ValueError, match=message):
        quantize_rows(given, bits, bias, head)
