"""Host side: the definition of the search, one ring at a time in plain NumPy. viterbi.py is the fast form of it."""

import numpy as np
from jaxtyping import Float32, Int64

from pallas_kernels.trellis_search.ring import WINDOW, Ring


def search_ring_reference(
    target_P: Float32[np.ndarray, "P"], value_S: Float32[np.ndarray, "S"], ring: Ring
) -> Int64[np.ndarray, "P"]:
    """The states of one ring: a free pass from the middle, then a pass closed at the edge that it enters 0 with.

    Args:
      target_P: float32. value_S: float32 [65536], the value of each state.
    Returns: int64 [P] states in [0, 65536).
    """
    order = np.roll(np.arange(ring.length), -ring.middle)
    cost, choices = _forward(target_P, value_S, ring, order, np.zeros(ring.edges, np.float32))
    entry, _ = _trace_back(int(cost.argmin()), choices, ring, order[ring.length - ring.middle :])
    pinned = np.full(ring.edges, np.inf, np.float32)
    pinned[entry] = 0
    _, choices = _forward(target_P, value_S, ring, np.arange(ring.length), pinned)
    return _trace_back(entry, choices, ring, np.arange(ring.length))[1]


def _forward(target_P, value_S, ring: Ring, order: np.ndarray, cost: np.ndarray):
    """The cheapest costs to each edge after the last position, and the choices that led to each edge of each."""
    choices = {}
    for p in order:
        new, following = ring.new_bits(np.array([p, p + 1]))
        distance = value_S - target_P[p]
        by_state = np.repeat(cost, 1 << new) + distance * distance
        by_choice = by_state.reshape(1 << following, -1)
        choices[p] = by_choice.argmin(axis=0)
        cost = by_choice.min(axis=0)
    return cost, choices


def _trace_back(edge: int, choices: dict, ring: Ring, order: np.ndarray):
    """The edge before the first of these positions, and their states."""
    states = np.empty(len(order), np.int64)
    for i in reversed(range(len(order))):
        new, following = ring.new_bits(np.array([order[i], order[i] + 1]))
        states[i] = int(choices[order[i]][edge]) << (WINDOW - following) | edge
        edge = int(states[i]) >> int(new)
    return edge, states
