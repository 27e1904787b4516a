"""Traced: the mixture of experts over a sequence: every expert runs over every row, its weight zero where not picked.

Dense, and so differentiable through picks' weights and experts alike; one expert's weights are decoded at a time.
Read next: ngram.py, network.py.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import MoeParams, SharedExpertParams
from fnx_jax.families.flash_next.sequence.dense import dot, linear, parameter
from fnx_jax.families.flash_next.sequence.positions import positions
from pallas_kernels.expert_matmul import LineMap, Pools


def moe(x_TD: Float[Array, "T D"], params: MoeParams, config: FlashNextConfig) -> Float[Array, "T D"]:
    """sum of weight_e * expert_e(x) over each row's picks, plus the shared expert.

    Raises: ValueError where not every expert has a line: experts must be resident.
    """
    expert_TA, weight_TA = picks(x_TD, params, config)
    row = positions(x_TD.shape[0])[:, None]
    weight_TE = jnp.zeros((x_TD.shape[0], config.experts), x_TD.dtype).at[row, expert_TA].set(weight_TA)
    lines, line_map = params.lines, params.line_map
    projections = tuple(
        _by_expert(pools, line_map, number, config) for number, pools in enumerate((lines.gate, lines.up, lines.down))
    )

    def add_expert(total: Array, expert: tuple) -> tuple[Array, None]:
        (gate, up, down), pool_P, weight_T = expert
        hidden = jax.nn.silu(_project(x_TD, gate, pool_P[0], config.expert_ffn))
        hidden = hidden * _project(x_TD, up, pool_P[1], config.expert_ffn)
        return total + weight_T[:, None] * _project(hidden, down, pool_P[2], config.hidden), None

    shared = shared_expert(x_TD, params.shared, config)
    routed, _ = lax.scan(add_expert, jnp.zeros_like(x_TD), (projections, line_map.pool_PE.T, weight_TE.T))
    return routed + shared


def picks(
    x_TD: Float[Array, "T D"], params: MoeParams, config: FlashNextConfig
) -> tuple[Int[Array, "T A"], Float[Array, "T A"]]:
    """Each row's experts, most likely first, ties to the lower id, and their weights."""
    logits = dot(x_TD, parameter(params.router, x_TD), x_TD.dtype)
    weight, expert = lax.top_k(jax.nn.softmax(logits, axis=-1), config.active_experts)
    if config.normalise_picks:
        weight = weight / jnp.sum(weight, axis=-1, keepdims=True)
    return expert, weight


def shared_expert(x_TD: Float[Array, "T D"], params: SharedExpertParams, config: FlashNextConfig) -> Float[Array, "T D"]:
    """The expert that every row visits, times its gate."""
    hidden = jax.nn.silu(linear(x_TD, params.gate, config.shared_ffn)) * linear(x_TD, params.up, config.shared_ffn)
    return jax.nn.sigmoid(linear(x_TD, params.scale, 1)) * linear(hidden, params.down, config.hidden)


def _by_expert(pools: Pools, line_map: LineMap, projection: int, config: FlashNextConfig) -> Pools:
    """Pools in id order, E entries each; an expert that lies in another pool has entry 0 in its place."""
    lines = sum(jax.tree.leaves(weight)[0].shape[0] for weight in pools)
    if lines < config.experts:
        raise ValueError(f"moe: {lines} lines for {config.experts} experts, but every expert must be resident")
    pool_E, line_E = line_map.pool_PE[projection], line_map.line_PE[projection]
    own = [jnp.where(pool_E == number, line_E, 0) for number in range(len(pools))]
    return tuple(jax.tree.map(lambda a, line=line: a[line], weight) for weight, line in zip(pools, own, strict=True))


def _project(x: Float[Array, "T I"], pools: Pools, pool: jax.Array, outputs: int) -> Float[Array, "T O"]:
    if len(pools) == 1:
        return linear(x, pools[0], outputs)
    return lax.switch(pool, [lambda x, weight=weight: linear(x, weight, outputs) for weight in pools], x)
