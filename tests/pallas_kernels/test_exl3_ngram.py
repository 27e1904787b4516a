"""Rows of the n-gram table decode to the golden bits, on the host and on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from pallas_kernels.exl3.codebook import codebook_table
from pallas_kernels.exl3.ngram import decode_rows, decode_rows_numpy, row_words


def decode_by_definition(row: np.ndarray, bits: int, row_dim: int) -> np.ndarray:
    """Bit m of state i is stream bit ((i - m div bits) mod row_dim) * bits + (m mod bits), words least bit first."""
    stream = [int(word) >> bit & 1 for word in row[1:].view(np.uint16) for bit in range(16)]
    states = [sum(stream[(i - m // bits) % row_dim * bits + m % bits] << m for m in range(16)) for i in range(row_dim)]
    return codebook_table("mul1")[states].astype(np.float32) * row[:1].view(np.float16).astype(np.float32)


def random_rows(rng: np.random.Generator, rows: int, bits: int, row_dim: int) -> np.ndarray:
    words = rng.integers(-(2**15), 2**15, (rows, row_words(bits, row_dim))).astype(np.int16)
    words[:, 0] = rng.uniform(0.001, 0.1, rows).astype(np.float16).view(np.int16)
    return words


@pytest.mark.parametrize("bits", [5, 6])
def test_rows_have_the_golden_bits(golden, bits):
    table = load_file(golden / "exl3" / "ngram.safetensors")
    rows, head = table[f"k{bits}.rows"], table[f"k{bits}.head"]
    bias = table["head_bias"][head].astype(np.float32)
    host = decode_rows_numpy(rows, bits, 160)
    assert host.dtype == np.float32
    assert np.array_equal(host + bias, table[f"k{bits}.decoded_fp32"])
    device = jax.jit(decode_rows, static_argnums=(1, 2))(rows, bits, 160)
    assert np.array_equal(device, host)


def test_the_bit_order_of_tiles_is_told(golden):
    rows = load_file(golden / "exl3" / "ngram.safetensors")["k6.rows"]
    turned = rows.copy()
    turned[:, 1:] = (
        np.packbits(np.unpackbits(rows[:, 1:].copy().view(np.uint8)), bitorder="little").view(np.int16).reshape(24, -1)
    )
    assert np.mean(decode_rows_numpy(turned, 6, 160) != decode_rows_numpy(rows, 6, 160)) > 0.9


@settings(max_examples=25, deadline=None)
@given(bits=st.integers(1, 8), sixteenths=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_any_whole_row_follows_the_definition(bits, sixteenths, seed):
    row_dim = 16 * sixteenths // np.gcd(16, bits)
    rows = random_rows(np.random.default_rng(seed), 2, bits, row_dim)
    got = decode_rows_numpy(rows, bits, row_dim)
    for r in range(2):
        assert np.array_equal(got[r], decode_by_definition(rows[r], bits, row_dim))


@pytest.mark.parametrize(("bits", "row_dim"), [(1, 16), (4, 8), (7, 16), (8, 2)])
def test_the_device_has_the_bits_of_the_host(bits, row_dim):
    rows = random_rows(np.random.default_rng(0), 5, bits, row_dim)
    device = jax.jit(decode_rows, static_argnums=(1, 2))(rows, bits, row_dim)
    assert np.array_equal(device, decode_rows_numpy(rows, bits, row_dim))


def test_no_rows_are_no_rows():
    assert decode_rows_numpy(np.zeros((0, 61), np.int16), 6, 160).shape == (0, 160)


@pytest.mark.parametrize(
    ("shape", "bits", "row_dim"), [((3, 60), 6, 160), ((61,), 6, 160), ((3, 2), 3, 10), ((3, 11), 0, 160)]
)
def test_rows_of_another_shape_are_refused(shape, bits, row_dim):
    rows = np.zeros(shape, np.int16)
    with pytest.raises(ValueError, match="n-gram rows"):
        decode_rows_numpy(rows, bits, row_dim)
    with pytest.raises(ValueError, match="n-gram rows"):
        decode_rows(jnp.asarray(rows), bits, row_dim)
