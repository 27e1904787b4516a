"""Models of the session lent slots for kept states, so that nothing is compiled again, and rows that fill them."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from fnx_jax.lanes.kept_states import KeptStates
from fnx_jax.lanes.rounds import DeviceSteps
from tests.fnx_jax.cases import Piece, page_table, run


@contextmanager
def with_slots(steps: DeviceSteps, count: int) -> Iterator[DeviceSteps]:
    """The steps with room for `count` kept states, until the end."""
    device = steps.device
    parts = (device.family, device.config, device.shards, device.mesh, device.params)
    steps.slots, steps.kept = count, KeptStates(*parts, steps.state, count)
    try:
        yield steps
    finally:
        steps.slots, steps.kept = 0, None


def held(steps: DeviceSteps, slot: int) -> list[bytes]:
    """The bytes of a slot, leaf by leaf; of leaves that are dealt, every rank's."""
    assert steps.kept is not None
    sharded = [np.asarray(leaf) for leaf in steps.kept.leaves]
    return [(leaf[:, slot] if leaf.shape[0] != steps.slots else leaf[slot]).tobytes() for leaf in sharded]


def resume(steps: DeviceSteps, slot: int, source: int, target: int, length: int) -> np.ndarray:
    """Gives a lane a kept state and its pages as the engine does. Returns the page table of all lanes.

    source: the lane whose rows were kept. The target shares its whole pages, and gets a copy of the last one.
    """
    pages_LP = page_table(steps)
    shared = (length - 1) // steps.page
    pages_LP[target, :shared] = pages_LP[source, :shared]
    steps.copy_page(int(pages_LP[source, shared]), int(pages_LP[target, shared]))
    steps.restore(slot, target)
    return pages_LP


def drafted(steps, lane, ids, end):
    """Windows of wrong and right drafts up to `end`, which stays under test: (proposed, accepted) as they come."""
    wrong = (ids + 1) % 128
    at, shapes = 0, [(3, 1), (0, 0), (15, 2), (2, 0), (3, 3), (1, 0), (7, 7)]
    while at < end:
        proposed, accepted = shapes[at % len(shapes)]
        accepted = min(accepted, end - at - 1)
        tokens = np.concatenate([ids[: at + 1 + accepted], wrong[at + 1 + accepted :]])
        run(steps, [Piece(lane, tokens, at, at + 1 + proposed, drafts_from=at + 1)])
        at += 1 + accepted
