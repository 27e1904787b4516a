"""Traced: the tail-biting search of one block of rings, rings along the last axis. Read next: op.py.

A table [edges, rings] of the cheapest cost up to each edge is all that a step carries. Reshaped, the 65536 states line
up with the edges before and after them, so a step is elementwise: no gather, and every ring at once in vector lanes.
"""

from functools import partial

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, Int32, UInt8

from pallas_kernels.trellis_search.costs import Costs, add_cost, edge_order, target_of
from pallas_kernels.trellis_search.ring import WINDOW, Ring

_UNROLLED = 16
"""Predecessors that one elementwise operation compares; more of them are compared in a loop."""


def search_block(
    target_PR: Float32[Array, "P R"], value_S: Float32[Array, "S"], ring: Ring, costs: Costs
) -> Int32[Array, "P R"]:
    """Finds the states of R closed rings whose values lie close to the targets, in two passes.

    Pass 1 starts in the middle of the ring with any edge, goes round once and traces its cheapest path back to the edge
    that enters position 0. Pass 2 starts at position 0 with that edge, goes round and traces back from the same edge.

    Args:
      target_PR: float32, positions first. value_S: float32 [65536], the value of each state.
    Returns: int32 states; neighbours agree on the edge between them, the last and the first position too.
    """
    rings = target_PR.shape[1]
    target_PR = target_of(target_PR, costs)
    step = partial(_step, value_S=value_S, ring=ring, costs=costs)
    phase_P = jnp.asarray(np.arange(ring.length) % len(ring.phases), jnp.int32)
    early, late = ((target_PR[half], phase_P[half]) for half in (slice(ring.middle), slice(ring.middle, None)))

    free = jnp.zeros((ring.edges, rings), jnp.float32)
    cost, _ = lax.scan(lambda cost, at: (step(cost, at)[0], None), free, late)
    cost, choices = lax.scan(step, cost, early)
    entry, _ = _trace_back(_cheapest(cost, costs), choices, ring)

    entered = jnp.arange(ring.edges, dtype=jnp.int32)[:, None] == entry[None, :]
    pinned = jnp.where(entered, np.float32(0), np.float32(np.inf))
    _, choices = lax.scan(step, pinned, (target_PR, phase_P))
    return _trace_back(entry, choices, ring)[1]


def _cheapest(cost_ER: Float32[Array, "E R"], costs: Costs) -> Int32[Array, "R"]:
    """The cheapest edge after the last position; the position after it has phase 0, so all of the table is in use."""
    order = edge_order(cost_ER.shape[0], costs)
    ordered = cost_ER if costs == "float32" else cost_ER[order]
    return jnp.asarray(order)[jnp.argmin(ordered, axis=0)]


def _step(cost_ER: Float32[Array, "E R"], at, *, value_S: Float32[Array, "S"], ring: Ring, costs: Costs):
    """One position: the new table, and the choice that led to each edge; both are padded to the phase of most edges."""
    target_R, phase = at
    branches = [
        partial(_phase_step, value_S=value_S, new=new, following=following, costs=costs)
        for new, following in zip(ring.phases, ring.phases[1:] + ring.phases[:1], strict=True)
    ]
    if len(branches) == 1:
        return branches[0](cost_ER, target_R)
    return lax.switch(phase, branches, cost_ER, target_R)


def _phase_step(
    cost_ER: Float32[Array, "E R"],
    target_R: Float32[Array, "R"],
    *,
    value_S: Float32[Array, "S"],
    new: int,
    following: int,
    costs: Costs,
) -> tuple[Float32[Array, "E R"], UInt8[Array, "E R"]]:
    """Costs up to the edges after a position, and which of the 2^following states before each edge was cheapest.

    State s = choice << (16 - following) | edge; the edge before it is s >> new. Of equal costs the least choice wins.
    """
    edges, rings = cost_ER.shape
    many, high, low = 1 << following, 1 << (WINDOW - new - following), 1 << new
    before = cost_ER[: many * high].reshape(many, high, 1, rings)
    values = value_S.reshape(many, high, low, 1)
    target = target_R.reshape(1, 1, rings)

    def cheaper(found, first, before, values):
        best, choice = found
        for k in range(before.shape[0]):
            cost = add_cost(before[k], values[k], target, costs)
            less = cost < best
            best, choice = jnp.where(less, cost, best), jnp.where(less, first + np.uint8(k), choice)
        return best, choice

    def cheaper_of_group(group, found):
        parts = (lax.dynamic_slice_in_dim(x, group * _UNROLLED, _UNROLLED) for x in (before, values))
        return cheaper(found, (group * _UNROLLED).astype(jnp.uint8), *parts)

    shape = (high, low, rings)
    found = jnp.full(shape, np.inf, jnp.float32), jnp.zeros(shape, jnp.uint8)
    if many <= _UNROLLED:
        found = cheaper(found, np.uint8(0), before, values)
    else:
        found = lax.fori_loop(0, many // _UNROLLED, cheaper_of_group, found)
    cost, choice = (x.reshape(-1, rings) for x in found)
    unused = [(0, edges - cost.shape[0]), (0, 0)]
    return jnp.pad(cost, unused), jnp.pad(choice, unused)


def _trace_back(
    edge_R: Int32[Array, "R"], choices_PER: UInt8[Array, "P E R"], ring: Ring
) -> tuple[Int32[Array, "R"], Int32[Array, "P R"]]:
    """Walks back from the edge after the last position; returns the edge before the first, and all states between."""
    position = np.arange(choices_PER.shape[0])
    new, following = (ring.new_bits(position + ahead) for ahead in (0, 1))
    lane = jnp.arange(edge_R.shape[0], dtype=jnp.int32)

    def back(edge, at):
        p, new, following = at
        state = (choices_PER[p, edge, lane].astype(jnp.int32) << (WINDOW - following)) | edge
        return state >> new, state

    return lax.scan(back, edge_R, [jnp.asarray(x, jnp.int32) for x in (position, new, following)], reverse=True)
