"""Traced: the routed experts of a batch of rows, each expert over a buffer of the rows that picked it.

Serving runs every pick; here an expert takes a fixed number of rows, so that all experts are three batched matmuls, and
picks beyond it are left out. Gathers run in both directions of the gradient, since scatters are slow on CPUs.
Read next: network.py.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int


@struct.dataclass
class Places:
    """slot_RA: each pick's place in the buffers, [R, A] int32, the number of places where there was no room.

    row_S: the row at each place, [S] int32, the number of rows where the place is empty; pick_S: which flat (row, pick)
    lies there, likewise. S = experts * room.
    """

    slot_RA: jax.Array
    row_S: jax.Array
    pick_S: jax.Array


def places(expert_RA: Int[Array, "R A"], experts: int, room: int) -> Places:
    """Deals picks to buffers of `room` rows an expert, in the order of their rows."""
    rows, picks = expert_RA.shape
    flat = expert_RA.reshape(-1)
    order = jnp.argsort(flat, stable=True).astype(jnp.int32)
    sorted_expert = flat[order]
    first_E = jnp.searchsorted(sorted_expert, jnp.arange(experts, dtype=flat.dtype)).astype(jnp.int32)
    rank = jnp.arange(flat.size, dtype=jnp.int32) - first_E[sorted_expert]
    slot = jnp.where(rank < room, sorted_expert * room + rank, experts * room)
    pick_S = jnp.full((experts * room,), flat.size, jnp.int32).at[slot].set(order, mode="drop")
    return Places(
        slot_RA=jnp.zeros((flat.size,), jnp.int32).at[order].set(slot, unique_indices=True).reshape(rows, picks),
        row_S=jnp.where(pick_S < flat.size, pick_S // picks, rows),
        pick_S=pick_S,
    )


@jax.custom_vjp
def dispatch(x_RD: Float[Array, "R D"], where: Places) -> Float[Array, "S D"]:
    """The row at every place of the buffers, zeros where there is none."""
    return _rows(x_RD, where.row_S)


def _dispatch_forward(x_RD: Array, where: Places) -> tuple[Array, Places]:
    return _rows(x_RD, where.row_S), where


def _dispatch_backward(where: Places, grad_SD: Array) -> tuple[Array, None]:
    return jnp.sum(_rows(grad_SD, where.slot_RA), axis=1), None


@jax.custom_vjp
def combine(y_SD: Float[Array, "S D"], weight_RA: Float[Array, "R A"], where: Places) -> Float[Array, "R D"]:
    """sum_a weight[r, a] * y[place of pick a of row r]; picks without a place add nothing."""
    return _combine_forward(y_SD, weight_RA, where)[0]


def _combine_forward(y_SD: Array, weight_RA: Array, where: Places) -> tuple[Array, tuple]:
    picked_RAD = _rows(y_SD, where.slot_RA)
    return jnp.einsum("rad,ra->rd", picked_RAD, weight_RA), (picked_RAD, weight_RA, where)


def _combine_backward(kept: tuple, grad_RD: Array) -> tuple[Array, Array, None]:
    picked_RAD, weight_RA, where = kept
    weight_S = _rows(weight_RA.reshape(-1, 1), where.pick_S)
    grad_weight = jnp.einsum("rad,rd->ra", picked_RAD, grad_RD)
    return _rows(grad_RD, where.row_S) * weight_S, grad_weight, None


dispatch.defvjp(_dispatch_forward, _dispatch_backward)
combine.defvjp(_combine_forward, _combine_backward)


def expert_mix(
    x_RD: Float[Array, "R D"],
    expert_RA: Int[Array, "R A"],
    weight_RA: Float[Array, "R A"],
    gate_EFD: Float[Array, "E F D"],
    up_EFD: Float[Array, "E F D"],
    down_EDF: Float[Array, "E D F"],
    room: int,
) -> Float[Array, "R D"]:
    """sum_a weight_a * down_e(silu(gate_e(x)) * up_e(x)), e = expert_RA[r, a], for the picks that find room."""
    experts = gate_EFD.shape[0]
    where = places(expert_RA, experts, room)
    x_ECD = dispatch(x_RD, where).reshape(experts, room, -1)
    hidden = jax.nn.silu(jnp.einsum("ecd,efd->ecf", x_ECD, gate_EFD)) * jnp.einsum("ecd,efd->ecf", x_ECD, up_EFD)
    return combine(jnp.einsum("ecf,edf->ecd", hidden, down_EDF).reshape(experts * room, -1), weight_RA, where)


def _rows(table_ND: Float[Array, "N D"], index: Int[Array, "..."]) -> Float[Array, "... D"]:
    """table[index], zeros for index N."""
    return jnp.take(table_ND, index, axis=0, mode="fill", fill_value=0)
