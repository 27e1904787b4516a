"""Codebooks, states and tiles spell the golden bits, on the device and on the host; wrong twins do not."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from pallas_kernels.exl3 import Exl3Weight, decode, decode_numpy, decoded
from pallas_kernels.exl3.codebook import CODEBOOKS, codebook_table, codebook_values
from pallas_kernels.exl3.trellis import decode_transposed, states, window_bits, windows
from pallas_kernels.exl3.weight import HALF_WIDTHS, WIDTHS, words_from_trellis

COMBINATIONS = [(c, b) for c in CODEBOOKS for b in WIDTHS if c == "mul1" or b not in HALF_WIDTHS]


@pytest.fixture(scope="module")
def tiles(golden):
    return load_file(golden / "exl3" / "tiles.safetensors")


def layer(words: np.ndarray, codebook: str) -> Exl3Weight:
    ones = np.ones(16 * words.shape[0], np.float16), np.ones(16 * words.shape[1], np.float16)
    return Exl3Weight(jnp.asarray(words), *ones, codebook=codebook)


def same_bits(a, b) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a.view(np.uint8), b.view(np.uint8))


@pytest.mark.parametrize("codebook", CODEBOOKS)
def test_codebooks_have_the_golden_value_of_every_state(golden, codebook):
    table = load_file(golden / "exl3" / "codebooks.safetensors")[codebook]
    assert same_bits(codebook_table(codebook), table)
    values = jax.jit(codebook_values, static_argnums=1)(jnp.arange(65536, dtype=jnp.uint32), codebook)
    assert same_bits(values, table)


@pytest.mark.parametrize(("codebook", "bits"), COMBINATIONS)
def test_tiles_decode_to_the_golden_bits(tiles, codebook, bits):
    trellis, golden_states, wq = (tiles[f"{codebook}.{bits}.{part}"] for part in ("trellis", "states", "wq"))
    words = words_from_trellis(trellis)
    assert np.array_equal(np.asarray(states(jnp.asarray(words))), golden_states)
    assert same_bits(jax.jit(decode)(layer(words, codebook)), wq)
    assert same_bits(decode_numpy(trellis, codebook), wq)
    assert same_bits(decode_numpy(words, codebook), wq)


def test_there_are_golden_tiles_of_every_combination(tiles):
    assert {name.rpartition(".")[0] for name in tiles} == {f"{c}.{b}" for c, b in COMBINATIONS}
    assert len(COMBINATIONS) == 27


@pytest.mark.parametrize("bits", WIDTHS)
def test_states_shifted_by_one_position_are_told(tiles, bits):
    golden_states = tiles[f"mul1.{bits}.states"]
    assert np.mean(np.roll(golden_states, 1, axis=-1) != golden_states) > 0.9


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_swapped_word_order_is_told(tiles, bits):
    trellis = tiles[f"mul1.{bits}.trellis"]
    swapped = trellis.reshape(*trellis.shape[:2], -1, 2)[..., ::-1].reshape(trellis.shape)
    assert np.mean(decode_numpy(swapped, "mul1") != tiles[f"mul1.{bits}.wq"]) > 0.9


def test_a_transposed_tile_is_told(tiles):
    wq = tiles["mul1.4.wq"].reshape(2, 16, 3, 16)
    assert np.mean(wq.transpose(0, 3, 2, 1) != wq) > 0.9


def test_the_transposed_decode_is_the_transpose(tiles):
    weight = layer(words_from_trellis(tiles["mul1.2.5.trellis"]), "mul1")
    assert same_bits(decode_transposed(weight), np.ascontiguousarray(tiles["mul1.2.5.wq"].T))


def test_a_layer_decoded_at_load_holds_the_transposed_matrix(tiles):
    wq = np.ascontiguousarray(tiles["mcg.3.wq"].T)
    weight = layer(words_from_trellis(tiles["mcg.3.trellis"]), "mcg")
    assert same_bits(decoded(weight).wq, wq)
    exact = decoded(weight, np.float32)
    assert same_bits(exact.wq, wq.astype(np.float32))
    assert (exact.in_features, exact.out_features) == (weight.in_features, weight.out_features) == (32, 48)


def test_values_stay_float16_when_they_are_widened_at_once(tiles):
    weight = layer(words_from_trellis(tiles["mul1.4.trellis"]), "mul1")
    widened = jax.jit(lambda w: decode(w).astype(jnp.float32))(weight)
    assert same_bits(widened, tiles["mul1.4.wq"].astype(np.float32))


def test_a_window_may_start_at_any_bit_of_a_word():
    high, low = 0x89ABCDEF, 0x01234567
    skip = np.arange(32)
    wanted = [(((high << 32 | low) << int(s)) >> 48) & 0xFFFF for s in skip]
    got = window_bits(jnp.full(32, high, jnp.uint32), jnp.full(32, low, jnp.uint32), jnp.asarray(skip, jnp.uint32))
    assert np.asarray(got).tolist() == wanted


@pytest.mark.parametrize("bits", WIDTHS)
def test_windows_go_once_round_the_ring(bits):
    word, next_word, skip = windows(int(8 * bits))
    last = (word * 32 + skip + 15) % (256 * bits)
    assert last[-1] == 256 * bits - 1
    assert set(np.diff(last)) == {int(bits), int(bits + 0.5)}
    assert np.array_equal(next_word, (word + 1) % int(8 * bits))


def test_decode_refuses_stacks_and_unknown_codebooks(tiles):
    words = words_from_trellis(tiles["mul1.4.trellis"])
    with pytest.raises(ValueError, match="one layer"):
        decode(replace(layer(words, "mul1"), words=jnp.asarray(words)[None]))
    with pytest.raises(ValueError, match="sqg_fp16"):
        decode(layer(words, "sqg_fp16"))
    with pytest.raises(ValueError, match="sqg_fp16"):
        decode_numpy(words, "sqg_fp16")
    with pytest.raises(ValueError, match="int32"):
        decode_numpy(words.view(np.int32), "mul1")
