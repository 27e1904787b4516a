"""Traced: softmax over all experts, top-k with ties to the lower id, renormalised, picks in id order."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.dense_matmul import dense_matmul
from pallas_kernels.elementary import exp
from pallas_kernels.tree_sum import tree_sum


def route(
    x_BD: Float[Array, "B D"], gate_ED: Float[Array, "E D"], active: int, normalise: bool
) -> tuple[Int[Array, "B A"], Float[Array, "B A"]]:
    """Returns the picked experts of each row, ids ascending, and their weights.

    The product runs in float32: a logit rounded to 16 bits ties too often at the border.
    """
    logits = dense_matmul(x_BD, gate_ED.astype(jnp.float32))
    weight, expert = jax.lax.top_k(softmax(logits), active)
    if normalise:
        weight = weight * (jnp.float32(1) / tree_sum(weight))[:, None]
    order = jnp.argsort(expert, axis=-1)
    return jnp.take_along_axis(expert, order, axis=-1), jnp.take_along_axis(weight, order, axis=-1)


def softmax(logits_BE: Float[Array, "B E"]) -> Float[Array, "B E"]:
    """exp(l - max) over its sum, float32, summed as a tree."""
    weight = exp(logits_BE - jnp.max(logits_BE, axis=-1, keepdims=True))
    return weight * (jnp.float32(1) / tree_sum(weight))[:, None]
