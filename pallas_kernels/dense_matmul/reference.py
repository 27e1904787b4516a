"""Traced: one tile of rows times a weight stored [out, in]."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def tile_matmul(x_BI: Float[Array, "B I"], weight_OI: Float[Array, "O I"]) -> Float[Array, "B O"]:
    """Contracts the last axes with float32 accumulators; operands as they come, of one dtype."""
    return jax.lax.dot_general(
        x_BI,
        weight_OI,
        (((1,), (1,)), ((), ())),
        # Never None, which would ask jax_default_matmul_precision.
        precision=jax.lax.Precision.HIGHEST if x_BI.dtype == jnp.float32 else jax.lax.Precision.DEFAULT,
        preferred_element_type=jnp.float32,
    )
