"""Traced, with a host twin: from the bitstream of 16x16 tiles to the matrix W_q, bit for bit.

A tile holds 256 values; value p is the codebook at a 16-bit window of the tile's ring of bits, and the windows overlap.
`decode` runs under jit; `decode_numpy` is for load time and shares only the window's formula. Read next: hadamard.py
(what surrounds W_q), tile.py (the same inside a kernel).
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float16, UInt32

from pallas_kernels.exl3.codebook import codebook_table, codebook_values
from pallas_kernels.exl3.weight import TILE, DecodedWeight, Exl3Weight, words_from_trellis

VALUES = TILE * TILE
# A value's place, by the bits of its position: column & 7, row >> 1 & 3, column >> 3, row >> 3, row & 1.
PLACE = (8, 4, 2, 2, 2)
# Axes (tile row, tile column, *PLACE) in the order of W_q [K, N], and of its transpose [N, K].
IN_OUT = (0, 5, 3, 6, 1, 4, 2)
OUT_IN = (1, 4, 2, 0, 5, 3, 6)


def window_end(position, half_bits: int):
    """The ring bit after the window of `position`: floor((position + 1) * bits), bits = half_bits / 2.

    Works on whole numbers and on integer arrays, in and out of kernels.
    """
    return ((position + 1) * half_bits) >> 1


def windows(words_per_tile: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each of a tile's 256 windows lies.

    A window is 16 bits, the newest last; the ring's bits are its words in order, most significant bit first.

    Args:
      words_per_tile: 8*bits, a multiple of 4.
    Returns: int32 [256] each: word of the first bit, the next word round the ring, bits skipped in the first (0..31).
    """
    first = (window_end(np.arange(VALUES), words_per_tile // 4) - 16) % (32 * words_per_tile)
    word = first >> 5
    return word.astype(np.int32), ((word + 1) % words_per_tile).astype(np.int32), (first & 31).astype(np.int32)


def window_bits(
    high: UInt32[Array, "..."], low: UInt32[Array, "..."], skip: UInt32[Array, "..."]
) -> UInt32[Array, "..."]:
    """16 bits of the pair `high`, `low` after the first `skip` (0..31) of them; shifts stay below 32."""
    one, most, half = np.uint32(1), np.uint32(31), np.uint32(16)
    return ((high << skip) | ((low >> one) >> (most - skip))) >> half


def states(words: UInt32[Array, "... W"]) -> UInt32[Array, "... 256"]:
    """The 256 states of each tile, in stream order."""
    word, next_word, skip = windows(words.shape[-1])
    skip = jnp.broadcast_to(jnp.asarray(skip, jnp.uint32), (*words.shape[:-1], VALUES))
    return window_bits(words[..., word], words[..., next_word], skip)


def decode(weight: Exl3Weight) -> Float16[Array, "K N"]:
    """The matrix W_q that a layer's trellis spells, inputs first, equal to the format's definition bit for bit.

    Args:
      weight: one layer (no leading axes).
    Returns: float16 [K, N].
    Raises: ValueError for an unknown codebook or stacked weights.
    Source: the EXL3 format of exllamav3 (doc/exl3.md); QTIP, arXiv 2406.11235.
    """
    return _decode(weight, IN_OUT).reshape(weight.in_features, weight.out_features)


def decode_transposed(weight: Exl3Weight) -> Float16[Array, "N K"]:
    """`decode`, outputs first: the layout that CPU dots want."""
    return _decode(weight, OUT_IN).reshape(weight.out_features, weight.in_features)


def _decode(weight: Exl3Weight, axes: tuple[int, ...]) -> Float16[Array, "..."]:
    if weight.words.ndim != 3:
        raise ValueError(f"exl3 decode: words {list(weight.words.shape)}, wanted one layer [K/16, N/16, 8*bits]")
    values = codebook_values(states(weight.words), weight.codebook)
    # The barrier keeps the rounding to float16 where the next operation widens the values again.
    return lax.optimization_barrier(values.reshape(*weight.words.shape[:2], *PLACE).transpose(axes))


def decode_numpy(trellis: np.ndarray, codebook: str) -> np.ndarray:
    """W_q on the host.

    Args:
      trellis: int16 [K/16, N/16, 16*bits] as in a file, or its uint32 words [K/16, N/16, 8*bits].
      codebook: one of CODEBOOKS.
    Returns: float16 [K, N].
    Raises: ValueError for another dtype or rank, or an unknown codebook.
    """
    return _decode_host(trellis, codebook, IN_OUT)


def decoded(weight: Exl3Weight, dtype: type[np.floating] = np.float16) -> DecodedWeight:
    """Decodes a layer once, on the host.

    Args:
      weight: one layer of NumPy arrays. dtype: of wq; float32 asks for exact mode.
    Returns: a DecodedWeight of NumPy arrays; all but wq are those of `weight`.
    """
    wq = _decode_host(np.asarray(weight.words), weight.codebook, OUT_IN)
    return DecodedWeight(wq=wq.astype(dtype, copy=False), suh=weight.suh, svh=weight.svh, bias=weight.bias)


def _decode_host(trellis: np.ndarray, codebook: str, axes: tuple[int, ...]) -> np.ndarray:
    if trellis.ndim != 3 or trellis.dtype not in (np.int16, np.uint32):
        raise ValueError(f"exl3 decode: {trellis.dtype} {list(trellis.shape)}, wanted int16 or uint32 of three axes")
    words = trellis if trellis.dtype == np.uint32 else words_from_trellis(trellis)
    rows, columns = words.shape[0] * TILE, words.shape[1] * TILE
    out = np.empty((rows, columns) if axes == IN_OUT else (columns, rows), np.float16)
    table = codebook_table(codebook)
    word, next_word, skip = windows(words.shape[2])
    shift = (48 - skip).astype(np.uint64)
    for row in range(words.shape[0]):  # one row of tiles at a time, so that intermediates stay in the caches
        tiles = words[row].astype(np.uint64)
        pairs = (tiles << np.uint64(32)) | tiles[:, np.arange(1, words.shape[2] + 1) % words.shape[2]]
        state = (pairs[:, word] >> shift) & np.uint64(0xFFFF)
        values = table[state].reshape(1, -1, *PLACE).transpose(axes)
        span = slice(row * TILE, (row + 1) * TILE)
        if axes == IN_OUT:
            out[span] = values.reshape(TILE, columns)
        else:
            out[:, span] = values.reshape(columns, TILE)
    return out
