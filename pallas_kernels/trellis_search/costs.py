"""Traced: the two arithmetics of a path's cost. Read next: viterbi.py.

"float32" adds squared distances as they are. "float16" rounds every operation to float16, as the format's first
encoder did on its GPU: its choices can be held against that encoder's, state for state.
"""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32

Costs = Literal["float32", "float16"]
_THREADS, _LANES = 1024, 32


def target_of(target: Float32[Array, "..."], costs: Costs) -> Float32[Array, "..."]:
    """The target as the cost sees it."""
    return target if costs == "float32" else to_half(target)


def add_cost(
    before: Float32[Array, "..."], value: Float32[Array, "..."], target: Float32[Array, "..."], costs: Costs
) -> Float32[Array, "..."]:
    """before + (value - target)^2; the three must broadcast and have the same rank."""
    distance = value - target
    if costs == "float32":
        return before + distance * distance
    distance = to_half(distance)
    # The square of a half is exact in float32, so only the sum needs care.
    return to_half(_add_to_odd(before, distance * distance))


def to_half(x: Float32[Array, "..."]) -> Float32[Array, "..."]:
    """Rounds to the float16 grid, subnormals kept, and stays float32; magnitudes below 65520, or infinite."""
    small = lax.round(x * np.float32(2**24), lax.RoundingMethod.TO_NEAREST_EVEN) * np.float32(2**-24)
    return jnp.where(jnp.abs(x) < np.float32(2**-14), small, lax.reduce_precision(x, 8, 10))


def _add_to_odd(a: Float32[Array, "..."], b: Float32[Array, "..."]) -> Float32[Array, "..."]:
    """a + b >= 0 rounded to odd: a later rounding to float16 then equals one rounding of the exact sum."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    bits = lax.bitcast_convert_type(total, jnp.int32)
    step = jnp.where(error > 0, np.int32(1), np.int32(-1))
    inexact = (error != 0) & (bits & np.int32(1) == 0) & jnp.isfinite(total)
    return lax.bitcast_convert_type(jnp.where(inexact, bits + step, bits), jnp.float32)


def edge_order(edges: int, costs: Costs) -> np.ndarray:
    """The order in which equal final costs are preferred: int32 [edges].

    float32: by number. float16: as 1,024 threads that take edges in strides find it, halving lanes, then warps: by the
    thread's warp and then its lane, both with reversed bits, then by stride.
    """
    edge = np.arange(edges, dtype=np.int32)
    if costs == "float32":
        return edge
    thread = edge % _THREADS
    keys = (edge // _THREADS, _reverse_five_bits(thread % _LANES), _reverse_five_bits(thread // _LANES))
    return np.lexsort(keys).astype(np.int32)


def _reverse_five_bits(x: np.ndarray) -> np.ndarray:
    return np.sum([(x >> bit & 1) << (4 - bit) for bit in range(5)], axis=0)
