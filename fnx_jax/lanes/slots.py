"""Traced: kept states: what a lane alone holds after so many rows, copied into a slot and back; and pages copied.

A kept state has the same bytes whoever made it: accepted rows are walked into the recurrent states first, and of a ring
only the rows that a later row can read are taken. Read next: kept_states.py.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fnx_jax.families import Family
from fnx_jax.families.leaves import Leaf
from fnx_jax.lanes.state import LaneState, commit, state_kinds
from pallas_kernels.row_tiles import ROW_TILE

Slots = tuple[jax.Array, ...]
"""One array [slots, ...] for each leaf that is a lane's own, in the order of the tree."""


def own_leaves(family: Family, state: LaneState) -> list[Any]:
    """The leaves that are a lane's own, in the order of the tree."""
    return [leaf for leaf, kind in _with_kinds(family, state) if kind is not Leaf.PAGES]


def page_leaves(family: Family, state: LaneState) -> list[Any]:
    """The leaves that lie in pages."""
    return [leaf for leaf, kind in _with_kinds(family, state) if kind is Leaf.PAGES]


def keep(
    family: Family,
    config: Any,
    shards: Any,
    params: Any,
    state: LaneState,
    slots: Slots,
    lane: Int[Array, ""],
    length: Int[Array, ""],
    slot: Int[Array, ""],
) -> Slots:
    """The slots with one lane's state after `length` rows, which may be up to a window past its committed ones."""
    kinds = state_kinds(family, state)
    alone = jax.tree.map(
        lambda leaf, kind: leaf if kind is Leaf.PAGES else jax.lax.dynamic_slice_in_dim(leaf, lane, 1), state, kinds
    )
    alone = commit(family, config, shards, params, alone, length[None])
    taken = [
        _cut_ring(leaf[0], length) if kind is Leaf.RING else leaf[0]
        for leaf, kind in _with_kinds(family, alone)
        if kind is not Leaf.PAGES
    ]
    return tuple(held.at[slot].set(leaf) for held, leaf in zip(slots, taken, strict=True))


def restore(family: Family, state: LaneState, slots: Slots, slot: Int[Array, ""], lane: Int[Array, ""]) -> LaneState:
    """The lanes, of which one has the state in a slot."""
    held = iter(slots)
    return jax.tree.map(
        lambda leaf, kind: leaf if kind is Leaf.PAGES else leaf.at[lane].set(next(held)[slot]),
        state,
        state_kinds(family, state),
    )


def copy_page(family: Family, state: LaneState, source: Int[Array, ""], target: Int[Array, ""]) -> LaneState:
    """The lanes, with all that one page holds in another one too."""
    return jax.tree.map(
        lambda leaf, kind: leaf.at[target].set(leaf[source]) if kind is Leaf.PAGES else leaf,
        state,
        state_kinds(family, state),
    )


def read_slot(slots: Slots, slot: Int[Array, ""]) -> Slots:
    """What a slot holds."""
    return tuple(held[slot] for held in slots)


def write_slot(slots: Slots, values: Slots, slot: Int[Array, ""]) -> Slots:
    """The slots with other values in one."""
    return tuple(held.at[slot].set(value) for held, value in zip(slots, values, strict=True))


def read_pages(family: Family, state: LaneState, page_U: Int[Array, " U"]) -> list[Any]:
    """What some pages hold, leaf by leaf: [U, ...]."""
    return [leaf[page_U] for leaf in page_leaves(family, state)]


def write_pages(family: Family, state: LaneState, values: list[Any], page_U: Int[Array, " U"]) -> LaneState:
    """The lanes with other values in some pages; numbers past the pool's end are left out."""
    given = iter(values)
    return jax.tree.map(
        lambda leaf, kind: leaf.at[page_U].set(next(given), mode="drop") if kind is Leaf.PAGES else leaf,
        state,
        state_kinds(family, state),
    )


def _with_kinds(family: Family, state: LaneState) -> list[tuple[Any, Leaf]]:
    kinds = jax.tree.map(lambda leaf, kind: kind, state, state_kinds(family, state))
    return list(zip(jax.tree.leaves(state), jax.tree.leaves(kinds), strict=True))


def _cut_ring(ring_RC: Array, length: Int[Array, ""]) -> Array:
    """A ring's rows before `length`, without those that drafts under test may have written over; zeros elsewhere."""
    rows = ring_RC.shape[0]
    place = jnp.arange(rows, dtype=jnp.int32)
    position = length - 1 - (length - 1 - place) % rows
    there = (position >= 0) & (position >= length - (rows - ROW_TILE))
    return jnp.where(there.reshape(-1, *[1] * (ring_RC.ndim - 1)), ring_RC, jnp.zeros((), ring_RC.dtype))
