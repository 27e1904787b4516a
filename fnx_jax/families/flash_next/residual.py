"""Traced: where the residual streams begin."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fnx_jax.families.flash_next.config import FlashNextConfig


def embed(embedding_VD: Float[Array, "V D"], token_B: Int[Array, " B"], config: FlashNextConfig) -> Float[Array, "B N"]:
    """The token's embedding, once in every stream. float32."""
    return jnp.tile(embedding_VD[token_B].astype(jnp.float32), (1, config.streams))
