"""Traced, with a host twin: rows of an n-gram embedding table, packed as rings of trellis symbols.

A row is one float16 scale and a ring of row_dim * bits bits, read from the least significant bit of each 16-bit word:
another order than that of tiles. Rows are looked up on the host, so the host form is the one that serves.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, Int16

from pallas_kernels.exl3.codebook import codebook_table, codebook_values

STATE_BITS = 16


def decode_rows(rows_RW: Int16[Array, "R W"], bits: int, row_dim: int, codebook: str = "mul1") -> Float32[Array, "R D"]:
    """Decodes table rows: row[i] = codebook(state i) * scale, in float32; the caller adds the head's bias.

    State i holds the symbols of positions i, i-1, ... round the ring, newest in the low bits.

    Args:
      rows_RW: int16 [R, 1 + row_dim*bits/16], word 0 the float16 scale. bits: 1 to 8, whole. row_dim: values a row.
      codebook: as in Exl3Weight; published tables use mul1.
    Returns: float32 [R, row_dim].
    Raises: ValueError where the words are not those of such a row.
    Source: the n-gram codec of exllamav3.
    """
    _check(rows_RW.shape, bits, row_dim)
    words = lax.bitcast_convert_type(rows_RW, jnp.uint16).astype(jnp.uint32)
    word, next_word, skip = _symbol_places(bits, row_dim)
    pairs = words[:, word] | (words[:, next_word] << 16)
    skip = jnp.broadcast_to(jnp.asarray(skip, jnp.uint32), pairs.shape)
    symbols = (pairs >> skip) & np.uint32((1 << bits) - 1)
    scale = lax.bitcast_convert_type(rows_RW[:, :1], jnp.float16).astype(jnp.float32)
    values = lax.optimization_barrier(codebook_values(_states(symbols, bits, jnp.roll), codebook))
    return values.astype(jnp.float32) * jnp.broadcast_to(scale, values.shape)


def decode_rows_numpy(rows_RW: np.ndarray, bits: int, row_dim: int, codebook: str = "mul1") -> np.ndarray:
    """`decode_rows` on the host: int16 [R, 1 + row_dim*bits/16] -> float32 [R, row_dim], the same bits."""
    _check(rows_RW.shape, bits, row_dim)
    rows_RW = np.ascontiguousarray(rows_RW, dtype="<i2")
    words = rows_RW.view("<u2").astype(np.uint32)
    word, next_word, skip = _symbol_places(bits, row_dim)
    pairs = words[:, word] | (words[:, next_word] << np.uint32(16))
    symbols = (pairs >> skip.astype(np.uint32)) & np.uint32((1 << bits) - 1)
    scale = rows_RW[:, :1].view("<f2").astype(np.float32)
    values = codebook_table(codebook)[_states(symbols, bits, np.roll)].astype(np.float32)
    with np.errstate(invalid="ignore"):  # a broken scale spoils its row, which the caller's finite check finds
        return values * scale


def row_words(bits: int, row_dim: int) -> int:
    """int16 words of a row: the scale and the ring.

    Raises: ValueError where `bits` is not a whole number from 1 to 8 or the ring does not fill whole words.
    """
    if bits not in range(1, 9) or row_dim < 1 or row_dim * bits % 16:
        raise ValueError(f"n-gram rows: {row_dim} values of {bits} bits do not fill 16-bit words, bits 1 to 8")
    return 1 + row_dim * bits // 16


def _check(shape: tuple[int, ...], bits: int, row_dim: int) -> None:
    wanted = row_words(bits, row_dim)
    if len(shape) != 2 or shape[1] != wanted:
        raise ValueError(f"n-gram rows: shape {list(shape)}, wanted [rows, {wanted}] at {bits} bits, {row_dim} values")


def _symbol_places(bits: int, row_dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each symbol: its row word, the word after it (any word where the symbol does not reach it), its first bit."""
    first = np.arange(row_dim) * bits
    word = 1 + first // 16
    return word, np.minimum(word + 1, row_dim * bits // 16), first % 16


def _states(symbols, bits: int, roll):
    """uint32 [R, D] of either library, with its own `roll`."""
    state = symbols
    for back in range(1, -(-STATE_BITS // bits)):
        state = state | (roll(symbols, back, axis=1) << np.uint32(back * bits))
    return state & np.uint32(0xFFFF)
