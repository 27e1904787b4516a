"""Traced side: exact top-k of rows as long as a vocabulary. Definition: reference.py."""

import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from pallas_kernels.candidates.reference import top_candidates_reference


def top_candidates(values_BV: Float32[Array, "B V"], count: int) -> tuple[Float32[Array, "B K"], Int32[Array, "B K"]]:
    """Returns each row's K = min(count, V) first entries in the order (value descending, id ascending).

    -0 and +0 are one value, returned as +0. Lists of consecutive slices of a vocabulary, laid side by side and
    selected from again, give the list of the whole.

    Args:
      values_BV: float32; -inf is a value like others, a NaN makes its own row meaningless.
      count: entries wanted, static.
    Returns: values and ids, both [B, K].
    Raises: ValueError where the values are not float32 rows or the count is negative.
    """
    if values_BV.ndim != 2 or values_BV.dtype != jnp.float32:
        raise ValueError(f"top_candidates: values are {values_BV.dtype} {values_BV.shape}, not float32 [B, V]")
    if count < 0:
        raise ValueError(f"top_candidates: count {count} is negative")
    if count == 0:
        rows = values_BV.shape[0]
        return jnp.zeros((rows, 0), jnp.float32), jnp.zeros((rows, 0), jnp.int32)
    return top_candidates_reference(values_BV, min(count, values_BV.shape[1]))
