"""Host side: searches any number of rings, a block of them at a time. Read next: viterbi.py.

Blocks have few shapes, so that a search compiles once for a width and ring length, however many rings come.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, Int, UInt16

from pallas_kernels.exl3.codebook import codebook_table, require_codebook
from pallas_kernels.exl3.weight import HALF_WIDTHS
from pallas_kernels.trellis_search.costs import Costs
from pallas_kernels.trellis_search.ring import Ring
from pallas_kernels.trellis_search.tuning import Blocks, blocks_for
from pallas_kernels.trellis_search.viterbi import search_block


def search_rings(
    target_TP: Float32[np.ndarray, "T P"],
    bits: float,
    codebook: str = "mul1",
    *,
    costs: Costs = "float32",
    blocks: Blocks | None = None,
) -> UInt16[np.ndarray, "T P"]:
    """Finds, for each ring of P targets, P states of 16 bits with sum_p (value(state_p) - target_p)^2 nearly least.

    Neighbouring states overlap as the windows of an EXL3 bitstream do, the last and the first too. Two Viterbi passes:
    the first, with free ends, chooses the edge at which the second closes. A ring's states depend on that ring alone.

    Args:
      target_TP: float32, finite, one ring a row; 256 targets in stream order for a tile. bits: new bits a position, a
        whole number from 1 to 8, or 1.5, 2.5, 3.5 with mul1. codebook: "3inst", "mcg" or "mul1".
      costs: "float32" adds squared errors as they are; "float16" rounds as the format's first encoder does.
      blocks: None takes those of the current device.
    Returns: uint16 states.
    Raises: ValueError for targets of another rank or not finite, and for a width, codebook, ring length or arithmetic
      that does not exist.
    Source: QTIP, arXiv 2406.11235; exllamav3.
    """
    ring = _check(target_TP, bits, codebook, costs)
    value_S = jnp.asarray(codebook_table(codebook), jnp.float32)
    blocks = blocks or blocks_for(jax.default_backend(), len(target_TP))
    states_TP = np.empty(target_TP.shape, np.uint16)
    for first in range(0, len(target_TP), blocks.count * blocks.rings):
        part = target_TP[first : first + blocks.count * blocks.rings]
        used = -(-len(part) // blocks.rings)
        found_NPR = _search_blocks(_in_blocks(part, blocks), np.int32(used), value_S, ring, costs)
        found = np.asarray(found_NPR)[:used].transpose(0, 2, 1).reshape(-1, ring.length)
        states_TP[first : first + len(part)] = found[: len(part)]
    return states_TP


def _check(target_TP: np.ndarray, bits: float, codebook: str, costs: str) -> Ring:
    require_codebook(codebook)
    if bits in HALF_WIDTHS and codebook != "mul1":
        raise ValueError(f"search_rings: {bits} bits with codebook {codebook}; half widths exist with mul1 only")
    if costs not in ("float32", "float16"):
        raise ValueError(f"search_rings: no costs {costs!r}, wanted 'float32' or 'float16'")
    if target_TP.ndim != 2 or target_TP.dtype != np.float32:
        raise ValueError(f"search_rings: {target_TP.dtype} {list(target_TP.shape)}, wanted float32 [rings, positions]")
    if not np.isfinite(target_TP).all():
        raise ValueError("search_rings: a target is not finite")
    return Ring(target_TP.shape[1], bits)


def _in_blocks(target_TP: np.ndarray, blocks: Blocks) -> np.ndarray:
    """[count, P, rings], rings last and zeros where there are none."""
    positions = target_TP.shape[1]
    padded = np.zeros((blocks.count * blocks.rings, positions), np.float32)
    padded[: len(target_TP)] = target_TP
    return np.ascontiguousarray(padded.reshape(blocks.count, blocks.rings, positions).transpose(0, 2, 1))


@partial(jax.jit, static_argnames=("ring", "costs"))
def _search_blocks(
    target_NPR: Float32[Array, "N P R"], used: Int[Array, ""], value_S: Float32[Array, "S"], ring: Ring, costs: Costs
) -> UInt16[Array, "N P R"]:
    """Searches the first `used` blocks, one after another."""

    def one(n, states_NPR):
        return states_NPR.at[n].set(search_block(target_NPR[n], value_S, ring, costs).astype(jnp.uint16))

    return lax.fori_loop(0, used, one, jnp.zeros(target_NPR.shape, jnp.uint16))
