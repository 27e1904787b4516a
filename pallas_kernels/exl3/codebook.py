"""Traced, with a host twin: the three codebooks, each a pure function of a 16-bit state.

The traced form uses uint32 arithmetic alone, also inside kernels; the host form is a table of all 65536 values.
Read next: trellis.py (which states a tile holds).
"""

from functools import cache

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float16, UInt32

from pallas_kernels.exl3.weight import MARKERS

CODEBOOKS = ("3inst", "mcg", "mul1")
_U32 = np.uint32
# The value of mul1 is bytesum * scale + offset, both constants float16: 0x1EEE and 0xC931.
_MUL1_SCALE = 0.00676727294921875
_MUL1_OFFSET = -10.3828125


def require_codebook(codebook: str) -> None:
    """Raises ValueError where `codebook` is none of CODEBOOKS."""
    if codebook not in CODEBOOKS:
        raise ValueError(f"exl3: no codebook {codebook!r}, wanted one of {CODEBOOKS}")


def codebook_values(state: UInt32[Array, "..."], codebook: str) -> Float16[Array, "..."]:
    """Values of states in [0, 65536), by their definition, rounded once.

    3inst, mcg: x = s*a + c; x = (x & 0x8FFF8FFF) ^ 0x3B603B60; the float16 halves of x, added.
    mul1: (1024 + the sum of the four bytes of s*m) * k + o.

    Args:
      state: uint32; anything above 16 bits is an error of the caller. codebook: one of CODEBOOKS.
    Returns: float16, the shape of `state`.
    Raises: ValueError for an unknown codebook.
    Source: QTIP, arXiv 2406.11235 (3INST); exllamav3 (mcg, mul1).
    """
    require_codebook(codebook)
    if codebook == "mul1":
        return _byte_sum_value(state * _U32(MARKERS["mul1"]))
    if codebook == "mcg":
        return _half_sum_value(state * _U32(MARKERS["mcg"]))
    return _half_sum_value(state * _U32(89226354) + _U32(64248484))


def _byte_sum_value(x: UInt32[Array, "..."]) -> Float16[Array, "..."]:
    pairs = (x & _U32(0x00FF00FF)) + ((x >> _U32(8)) & _U32(0x00FF00FF))
    total = (pairs + (pairs >> _U32(16))) & _U32(0x7FF)
    # Exact in float32 up to the cast: the product has 22 significant bits and the sum is a multiple of 2^-18 below 16.
    value = (total + _U32(1024)).astype(jnp.int32).astype(jnp.float32) * np.float32(_MUL1_SCALE)
    return (value + np.float32(_MUL1_OFFSET)).astype(jnp.float16)


def _half_sum_value(x: UInt32[Array, "..."]) -> Float16[Array, "..."]:
    x = (x & _U32(0x8FFF8FFF)) ^ _U32(0x3B603B60)
    low, high = (x & _U32(0xFFFF)).astype(jnp.uint16), (x >> _U32(16)).astype(jnp.uint16)
    # The sum of two halves is exact in float32, so only the cast rounds.
    halves = [lax.bitcast_convert_type(half, jnp.float16).astype(jnp.float32) for half in (low, high)]
    return (halves[0] + halves[1]).astype(jnp.float16)


@cache
def codebook_table(codebook: str) -> np.ndarray:
    """All values of a codebook, on the host: float16 [65536], index = state, read-only.

    Raises: ValueError for an unknown codebook.
    """
    require_codebook(codebook)
    state = np.arange(65536, dtype=np.uint64)
    if codebook == "mul1":
        x = ((state * np.uint64(MARKERS["mul1"])) & np.uint64(0xFFFFFFFF)).astype("<u4")
        total = x.view(np.uint8).reshape(-1, 4).sum(axis=1, dtype=np.float64)
        table = ((total + 1024) * _MUL1_SCALE + _MUL1_OFFSET).astype(np.float16)
    else:
        multiplier, addend = (MARKERS["mcg"], 0) if codebook == "mcg" else (89226354, 64248484)
        x = (state * np.uint64(multiplier) + np.uint64(addend)) & np.uint64(0xFFFFFFFF)
        halves = ((x.astype("<u4") & _U32(0x8FFF8FFF)) ^ _U32(0x3B603B60)).view("<f2").reshape(-1, 2)
        table = halves.astype(np.float64).sum(axis=1).astype(np.float16)
    table.setflags(write=False)
    return table
