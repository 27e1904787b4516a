"""Traced, inside a Pallas body (Triton lowering): a block of tiles from memory to float16 values in registers.

Positions are taken in runs of eight: the windows of a run lie in two or three consecutive words, which are loaded once
and shared. All indices are affine in a lane's number and do not change from step to step of K. Read next: kernel.py.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float16, Int32, UInt32

from pallas_kernels.exl3.codebook import codebook_values
from pallas_kernels.exl3.trellis import IN_OUT, PLACE, window_bits, window_end, windows
from pallas_kernels.exl3.weight import TILE

RUN = 8
RUNS = 32


def words_per_run(words_per_tile: int) -> int:
    """How many consecutive words the windows of a run touch at most: 2 or 3, by width."""
    word, _, skip = windows(words_per_tile)
    bits = np.diff(window_end(np.arange(-1, TILE * TILE), words_per_tile // 4)).reshape(RUNS, RUN)
    last = skip.reshape(RUNS, RUN)[:, 0] + bits[:, 1:].sum(axis=1) + 15
    return int(last.max() // 32) + 1


def decode_block(
    load: Callable[[Int32[Array, "32"]], UInt32[Array, "k n 32"]], words_per_tile: int, codebook: str
) -> Float16[Array, "bk bn"]:
    """Decodes a block of k x n tiles.

    Args:
      load: given word indices within a tile, int32 [32], returns those words of every tile of the block.
      words_per_tile: 8*bits. codebook: as in Exl3Weight.
    Returns: float16 [16k, 16n], the block of W_q.
    """
    word, skip = _run_starts(words_per_tile)
    count = words_per_run(words_per_tile)
    words = [load(_wrap(word + i, words_per_tile))[..., None] for i in range(count)]
    tiles = (*words[0].shape[:2], RUNS, RUN)
    skip = jnp.broadcast_to(skip[None, None], tiles)
    high, low = _neighbours([jnp.broadcast_to(w, tiles) for w in words], skip >> 5)
    values = codebook_values(window_bits(high, low, (skip & 31).astype(jnp.uint32)), codebook)
    k, n = tiles[:2]
    return values.reshape(k, n, *PLACE).transpose(IN_OUT).reshape(TILE * k, TILE * n)


def _run_starts(words_per_tile: int) -> tuple[Int32[Array, "32"], Int32[Array, "32 8"]]:
    """First word of each run, and the bits from its top to each window (0..95)."""
    half_bits, ring = words_per_tile // 4, 32 * words_per_tile
    lane, place = (lax.broadcasted_iota(jnp.int32, (RUNS, RUN), axis) for axis in (0, 1))
    lane_start = lax.broadcasted_iota(jnp.int32, (RUNS,), 0) * RUN
    first = _wrap(window_end(lane_start, half_bits) + (ring - 16), ring)
    # Bits of the run's later positions, counted from its first: a run starts at an even position.
    later = window_end(RUN * lane + place, half_bits) - window_end(RUN * lane, half_bits)
    return first >> 5, (first & 31)[:, None] + later


def _wrap(index: Int32[Array, "..."], size: int) -> Int32[Array, "..."]:
    return jnp.where(index >= size, index - size, index)


def _neighbours(
    words: list[UInt32[Array, "k n 32 8"]], index: Int32[Array, "k n 32 8"]
) -> tuple[UInt32[Array, "k n 32 8"], UInt32[Array, "k n 32 8"]]:
    """Word `index` of the run and the one after; the last one's successor never counts."""
    high, low = words[-1], words[-1]
    for i in reversed(range(len(words) - 1)):
        high, low = jnp.where(index == i, words[i], high), jnp.where(index == i, words[i + 1], low)
    return high, low
