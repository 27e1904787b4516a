"""Traced: the mixture of experts over a sequence: every expert runs over every row, its weight zero where not picked.

Dense, and so differentiable through picks' weights and experts alike; one expert's weights are decoded at a time.
Read next: ngram.py, network.py.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import MoeParams, SharedExpertParams
from fnx_jax.families.flash_next.sequence.dense import dot, linear
from fnx_jax.families.flash_next.sequence.positions import positions
from pallas_kernels.dense_matmul import Weight
from pallas_kernels.expert_matmul import ExpertLines, LineMap, Pools

Project = Callable[[Array], Array]
"""Rows in, rows out."""


def moe(x_TD: Float[Array, "T D"], params: MoeParams, config: FlashNextConfig) -> Float[Array, "T D"]:
    """The routed experts of each row's picks, plus the shared expert. Raises: see `routed_experts`."""
    expert, weight = picks(x_TD, params, config)
    routed = routed_experts(x_TD, expert, weight, params.lines, params.line_map, config)
    return routed + shared_expert(x_TD, params.shared, config)


def picks(
    x_TD: Float[Array, "T D"], params: MoeParams, config: FlashNextConfig
) -> tuple[Int[Array, "T A"], Float[Array, "T A"]]:
    """Each row's experts, most likely first, ties to the lower id, and their weights."""
    logits = dot(x_TD, params.router.astype(x_TD.dtype), x_TD.dtype)
    weight, expert = lax.top_k(jax.nn.softmax(logits, axis=-1), config.active_experts)
    if config.normalise_picks:
        weight = weight / jnp.sum(weight, axis=-1, keepdims=True)
    return expert, weight


def shared_expert(
    x_TD: Float[Array, "T D"], params: SharedExpertParams, config: FlashNextConfig
) -> Float[Array, "T D"]:
    """The expert that every row visits, times its gate."""
    hidden = shared_hidden(x_TD, params, config)
    return jax.nn.sigmoid(linear(x_TD, params.scale, 1)) * linear(hidden, params.down, config.hidden)


def shared_hidden(
    x_TD: Float[Array, "T D"], params: SharedExpertParams, config: FlashNextConfig
) -> Float[Array, "T F"]:
    """What the shared expert's down projection reads."""
    return jax.nn.silu(linear(x_TD, params.gate, config.shared_ffn)) * linear(x_TD, params.up, config.shared_ffn)


def routed_experts(
    x_TD: Float[Array, "T D"],
    expert_TA: Int[Array, "T A"],
    weight_TA: Float[Array, "T A"],
    lines: ExpertLines,
    line_map: LineMap,
    config: FlashNextConfig,
) -> Float[Array, "T D"]:
    """sum_a weight_a * down_e(silu(gate_e(x)) * up_e(x)), e = expert_TA[t, a], experts added in id order.

    Raises: ValueError where not every expert has a line: experts must be resident.
    """
    row = positions(x_TD.shape[0])[:, None]
    weight_TE = jnp.zeros((x_TD.shape[0], config.experts), x_TD.dtype).at[row, expert_TA].set(weight_TA)

    def add_expert(total: Array, down: Project, hidden_TF: Array, weight_T: Array) -> tuple[Array, None]:
        return total + weight_T[:, None] * down(hidden_TF), None

    return scan_experts(add_expert, jnp.zeros_like(x_TD), weight_TE.T, x_TD, lines, line_map, config)[0]


def scan_experts(
    visit: Callable[[Any, Project, Array, Any], tuple[Any, Any]],
    start: Any,
    own: Any,
    x_TD: Float[Array, "T D"],
    lines: ExpertLines,
    line_map: LineMap,
    config: FlashNextConfig,
) -> tuple[Any, Any]:
    """lax.scan over experts in id order, one of them decoded at a time.

    Args:
      visit: takes the carry, an expert's down projection, what that reads for every row [T, F], and the expert's entry
        of `own`; returns the next carry and what is stacked. start: the first carry. own: leaves [E, ...].
    Raises: ValueError where not every expert has a line: experts must be resident.
    """
    gate, up, down = lines.gate, lines.up, lines.down
    ordered = tuple(_by_expert(pools, line_map.line_PE[p], config) for p, pools in enumerate((gate, up, down)))

    def step(carry: Any, expert: tuple) -> tuple[Any, Any]:
        weight, pool, line, entry = expert
        hidden = jax.nn.silu(_project(x_TD, gate, weight[0], pool[0], line[0], config.expert_ffn))
        hidden = hidden * _project(x_TD, up, weight[1], pool[1], line[1], config.expert_ffn)
        return visit(carry, lambda h: _project(h, down, weight[2], pool[2], line[2], config.hidden), hidden, entry)

    return lax.scan(step, start, (ordered, line_map.pool_PE.T, line_map.line_PE.T, own))


def _by_expert(pools: Pools, line_E: Int[Array, " E"], config: FlashNextConfig) -> Weight | None:
    """A lone pool in id order, so that its gradient is written once an expert; None where there are several."""
    lines = sum(jax.tree.leaves(weight)[0].shape[0] for weight in pools)
    if lines < config.experts:
        raise ValueError(f"moe: {lines} lines for {config.experts} experts, but every expert must be resident")
    return jax.tree.map(lambda a: a[line_E], pools[0]) if len(pools) == 1 else None


def _project(
    x: Float[Array, "T I"], pools: Pools, own: Weight | None, pool: jax.Array, line: jax.Array, outputs: int
) -> Float[Array, "T O"]:
    if own is not None:
        return linear(x, own, outputs)
    branches = [lambda x, line, w=w: linear(x, jax.tree.map(lambda a: a[line], w), outputs) for w in pools]
    return lax.switch(pool, branches, x, line)
