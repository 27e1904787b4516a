"""Traced side, but for `seed_words`: the noise that draws add to logits. Definition: reference.py."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int, UInt32

from pallas_kernels.keyed_noise.reference import gumbel_noise_reference


def seed_words(seed: int) -> np.ndarray:
    """Splits a seed into its (low, high) words, uint32 [2]. Host side.

    Raises: ValueError outside [-2**63, 2**64); a negative seed is the same as its two's complement.
    """
    if not -(1 << 63) <= seed < 1 << 64:
        raise ValueError(f"seed_words: seed {seed} does not fit in 64 bits")
    return np.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], np.uint32)


def gumbel_noise(
    seed_B2: UInt32[Array, "B 2"],
    choice_B: Int[Array, "B"],
    position_B: Int[Array, "B"],
    ids_BK: Int[Array, "#B K"],
) -> Float32[Array, "B K"]:
    """Gumbel noise of each (seed, choice, position, id): no state, no order, no other input.

    key = T((seed low, seed high), (position, choice)), w = T(key, (id, 0)) with T = Threefry-2x32-20;
    v = w's 24 leading significant bits * 2**-64 (2**-65 for w = 0); g = -log(-log1p(-v)), in [-2.82, 45.1].

    Args:
      seed_B2: (low, high) words of each row's seed. choice_B: index of the reply among a request's replies.
      position_B: absolute position of the token drawn. ids_BK: token ids; one row of ids may serve all rows.
    Raises: ValueError where the seed is not uint32 [B, 2] or an index is not an integer.
    Source: Salmon et al. (SC 2011) for the hash; Gumbel-max sampling.
    """
    if seed_B2.dtype != jnp.uint32 or seed_B2.shape != (*position_B.shape, 2):
        raise ValueError(f"gumbel_noise: seed is {seed_B2.dtype} {seed_B2.shape}, not uint32 {(*position_B.shape, 2)}")
    for name, value in (("choice", choice_B), ("position", position_B), ("ids", ids_BK)):
        if not jnp.issubdtype(value.dtype, jnp.integer):
            raise ValueError(f"gumbel_noise: {name} is {value.dtype}, not an integer type")
    return gumbel_noise_reference(seed_B2, choice_B, position_B, ids_BK)
