"""Host side: the slots of kept states on the devices, the programs that fill and read them, and how many there can be.

Read next: slots.py, rounds.py.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fnx_jax.engine.steps import Held, ReuseError
from fnx_jax.families import Family
from fnx_jax.lanes import slots
from fnx_jax.lanes.state import LaneState
from fnx_jax.mesh import DEALT, layout, on_ranks, zeros

SLOTS_MOST = 64
"""Kept states on the devices at most."""
PAGES_AT_ONCE = 16
"""Pages that one program copies to or from the host; fewer are filled up, so that it compiles once."""
DEFAULT_MOST = 2 << 30
"""Bytes, see `default_budget`."""


@dataclass(frozen=True)
class KeptSizes:
    """Bytes on all devices. state: of a kept state without its pages; page: of a page of all paged leaves."""

    state: int
    page: int


def kept_sizes(family: Family, shapes: LaneState, ranks: int) -> KeptSizes:
    """Sizes from the shapes, on one of `ranks` ranks, of one lane with one page."""
    total = lambda leaves: ranks * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)  # noqa: E731
    return KeptSizes(total(slots.own_leaves(family, shapes)), total(slots.page_leaves(family, shapes)))


def default_budget(sizes: KeptSizes, lanes: int, context_pages: int) -> int:
    """Bytes on all devices where nobody says: what the lanes take, DEFAULT_MOST at most, and one state at least."""
    whole = lanes * (sizes.state + context_pages * sizes.page)
    return max(sizes.state + sizes.page, min(DEFAULT_MOST, whole))


def divide_budget(budget_bytes: int, sizes: KeptSizes, context_pages: int) -> tuple[int, int]:
    """Returns the slots and the pages that a budget on all devices pays for: half of it each, as far as that is of use.

    Raises: ValueError where it does not hold one state with a page; 0 bytes are no slots.
    """
    if not budget_bytes:
        return 0, 0
    if budget_bytes < sizes.state + sizes.page:
        raise ValueError(
            f"a prompt cache of {budget_bytes} bytes holds no state: one takes {sizes.state} bytes, "
            f"and {sizes.page} for each page of its rows"
        )
    count = max(1, min(SLOTS_MOST, budget_bytes // (2 * sizes.state)))
    pages = (budget_bytes - count * sizes.state) // sizes.page
    return count, min(pages, count * context_pages)


class KeptStates:
    """Slots of kept states; what they hold is the caller's to know."""

    def __init__(self, family: Family, config: Any, shards: Any, mesh: Mesh, params: Any, state: LaneState, count: int):
        self._params, self._count, self._mesh = params, count, mesh
        # Slots are made anew after a failure, when the lanes' leaves may be other arrays.
        self._shapes, self._paged = (
            [(leaf.shape, leaf.dtype, spec) for leaf, spec in zip(leaves, layout(leaves), strict=True)]
            for leaves in (slots.own_leaves(family, state), slots.page_leaves(family, state))
        )
        self._slots = self._empty()
        self._keep = on_ranks(
            partial(slots.keep, family, config, shards), mesh, lambda params, state, held, *rest: held, donate=(2,)
        )
        self._restore = on_ranks(partial(slots.restore, family), mesh, lambda state, *rest: state, donate=(0,))
        self._copy_page = on_ranks(partial(slots.copy_page, family), mesh, lambda state, *rest: state, donate=(0,))

        self._read_slot = on_ranks(slots.read_slot, mesh, lambda held, slot: held)
        self._write_slot = on_ranks(slots.write_slot, mesh, lambda held, *rest: held, donate=(0,))
        self._read_pages = on_ranks(
            partial(slots.read_pages, family), mesh, lambda state, pages: slots.page_leaves(family, state)
        )
        self._write_pages = on_ranks(partial(slots.write_pages, family), mesh, lambda state, *rest: state, donate=(0,))

    @property
    def leaves(self) -> slots.Slots:
        """One array for each leaf that is a lane's own."""
        return self._slots

    def keep(self, state: LaneState, lane: int, length: int, slot: int) -> None:
        """Fills a slot, without waiting. Raises ReuseError, after which every slot is empty."""
        try:
            self._slots = self._keep(self._params, state, self._slots, np.int32(lane), np.int32(length), np.int32(slot))
        except BaseException as error:
            self._slots = self._empty()
            if isinstance(error, Exception):
                raise ReuseError(f"{type(error).__name__}: {error}") from error
            raise

    def restore(self, state: LaneState, slot: int, lane: int) -> LaneState:
        """Returns the lanes with a slot's state in one of them; takes over their buffers."""
        return self._restore(state, self._slots, np.int32(slot), np.int32(lane))

    def copy_page(self, state: LaneState, source: int, target: int) -> LaneState:
        """Returns the lanes with a page copied; takes over their buffers."""
        return self._copy_page(state, np.int32(source), np.int32(target))

    def layout(self) -> str:
        """What a state is held as, off the devices: dtype, shape and layout of every array, of pages one page."""
        own = [(dtype.name, _without(shape, _axis(spec)), str(spec)) for shape, dtype, spec in self._shapes]
        paged = [(dtype.name, _without(shape, _axis(spec)), str(spec)) for shape, dtype, spec in self._paged]
        return f"{own} {paged}"

    def spill(self, state: LaneState, slot: int, pages: tuple[int, ...]) -> Held:
        """Copies a slot and some pages to the host, leaf by leaf, and waits. Pages lie along the axis of pages."""
        # Copies: on CPUs an array of the host may be the device's own.
        own = [np.array(leaf) for leaf in self._read_slot(self._slots, np.int32(slot))]
        groups = [self._read_pages(state, page_U) for page_U in _groups(pages, pages[-1])]
        paged = [
            _join([group[n] for group in groups], _axis(spec), len(pages)) for n, (*_, spec) in enumerate(self._paged)
        ]
        return (*own, *paged)

    def refill(self, state: LaneState, held: Held, slot: int, pages: tuple[int, ...]) -> LaneState:
        """Fills a slot and as many pages. Returns the lanes; takes over their buffers and the slots'.

        Raises: ValueError, before anything is written, where that is no state of these lanes.
        """
        self._require_fit(held, len(pages))
        own, paged = held[: len(self._shapes)], held[len(self._shapes) :]
        values = tuple(self._place(value, spec) for value, (*_, spec) in zip(own, self._shapes, strict=True))
        self._slots = self._write_slot(self._slots, values, np.int32(slot))
        past = np.iinfo(np.int32).max
        for group, page_U in enumerate(_groups(pages, past)):
            cut = [_part(value, _axis(spec), group) for value, (*_, spec) in zip(paged, self._paged, strict=True)]
            placed = [self._place(value, spec) for value, (*_, spec) in zip(cut, self._paged, strict=True)]
            state = self._write_pages(state, placed, page_U)
        return state

    def empty(self) -> None:
        """Makes all slots anew, after a failure in the middle of one."""
        self._slots = self._empty()

    def _place(self, value: np.ndarray, spec: Any) -> jax.Array:
        return jax.device_put(value, NamedSharding(self._mesh, spec))

    def _require_fit(self, held: Held, pages: int) -> None:
        wanted = [(dtype, _without(shape, _axis(spec))) for shape, dtype, spec in self._shapes]
        for shape, dtype, spec in self._paged:
            axis = _axis(spec)
            wanted.append((dtype, (*shape[:axis], pages, *shape[axis + 1 :])))
        if [(array.dtype, array.shape) for array in held] != wanted:
            raise ValueError(f"what was held is no state of these lanes with {pages} pages")

    def _empty(self) -> slots.Slots:
        return tuple(self._zeros(*shape) for shape in self._shapes)

    def _zeros(self, shape: tuple[int, ...], dtype: Any, spec: Any) -> jax.Array:
        one_rank = shape[1:] if spec == DEALT else shape
        return zeros((self._count, *one_rank[1:]), dtype, spec, self._mesh)


def _groups(pages: tuple[int, ...], filler: int) -> Iterator[np.ndarray]:
    """Page numbers in arrays of one shape, filled up with `filler`."""
    for first in range(0, len(pages), PAGES_AT_ONCE):
        group = pages[first : first + PAGES_AT_ONCE]
        yield np.array([*group, *[filler] * (PAGES_AT_ONCE - len(group))], np.int32)


def _axis(spec: Any) -> int:
    """Where lanes, slots or pages lie in a placed leaf: behind the ranks, where it is dealt."""
    return 1 if spec == DEALT else 0


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _join(groups: Sequence[jax.Array], axis: int, count: int) -> np.ndarray:
    """Pages in one array, without what fills up the last group."""
    *whole, last = map(np.asarray, groups)
    return np.concatenate([*whole, _slice(last, axis, 0, count - PAGES_AT_ONCE * len(whole))], axis)


def _part(paged: np.ndarray, axis: int, group: int) -> np.ndarray:
    """A group of pages, filled up with zeros."""
    part = _slice(paged, axis, group * PAGES_AT_ONCE, (group + 1) * PAGES_AT_ONCE)
    filler = [(0, PAGES_AT_ONCE - part.shape[axis] if n == axis else 0) for n in range(part.ndim)]
    return np.pad(part, filler)


def _slice(array: np.ndarray, axis: int, begin: int, end: int) -> np.ndarray:
    return array[(*[slice(None)] * axis, slice(begin, end))]


def unless_lost(work: Callable[[LaneState], LaneState], state: LaneState) -> LaneState:
    """Does `work`, which takes over the lanes' buffers.

    Raises: ReuseError where it failed and the lanes are as they were; what it raised where they are lost.
    """
    try:
        return work(state)
    except Exception as error:
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
            raise
        raise ReuseError(f"{type(error).__name__}: {error}") from error
