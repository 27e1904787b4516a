"""Host side: the calls that ranks make on their devices, all in the same order. Read next: leader.py, follower.py."""

from typing import Protocol

import numpy as np

from fnx_jax.engine.steps import DraftOutput, DraftPlan, Held, ReuseError, RoundOutput, RoundPlan, Steps
from fnx_jax.ranks.leader import Leader
from fnx_jax.ranks.messages import Commit, CopyPage, Draft, Keep, Restore, Round


class Called(Protocol):
    """What rank 0 passes on; lanes.rounds.DeviceSteps has it."""

    def round(self, plan: RoundPlan) -> RoundOutput:
        """Runs a round."""
        ...

    def draft(self, plan: DraftPlan) -> DraftOutput:
        """Drafts for some lanes."""
        ...

    def commit(self, length_L: np.ndarray) -> None:
        """Takes accepted rows into the recurrent states."""
        ...

    def keep(self, lane: int, length: int, slot: int) -> None:
        """Keeps a lane's state."""
        ...

    def restore(self, slot: int, lane: int) -> None:
        """Restores a kept one."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copies a page."""
        ...


class CalledSteps(Steps, Called, Protocol):
    """A device, as the engine and the other ranks know it."""


class LeaderSteps:
    """Rank 0's device: a call goes to the other ranks first, then to `steps`. Attributes as in engine.steps.Steps."""

    def __init__(self, steps: CalledSteps, leader: Leader):
        self.lanes, self.row_tile, self.max_rows = steps.lanes, steps.row_tile, steps.max_rows
        self.context, self.page, self.pages = steps.context, steps.page, steps.pages
        self.vocabulary, self.history = steps.vocabulary, steps.history
        self.draft_depth = steps.draft_depth
        self.owner: object = None
        self.slots, self.state_bytes, self.page_bytes = steps.slots, steps.state_bytes, steps.page_bytes
        self._steps, self._leader = steps, leader

    def round(self, plan: RoundPlan) -> RoundOutput:
        """Runs a round on all ranks. Raises RankLost, and whatever the device raises."""
        self._leader.send(Round(plan))
        return self._steps.round(plan)

    def draft(self, plan: DraftPlan) -> DraftOutput:
        """Drafts on all ranks. Raises as `round`."""
        self._leader.send(Draft(plan))
        return self._steps.draft(plan)

    def commit(self, length_L: np.ndarray) -> None:
        """Commits on all ranks. Raises as `round`."""
        self._leader.send(Commit(length_L))
        self._steps.commit(length_L)

    def keep(self, lane: int, length: int, slot: int) -> None:
        """Keeps a lane's state on all ranks. Raises as `round`, and ReuseError."""
        self._leader.send(Keep(lane, length, slot))
        self._steps.keep(lane, length, slot)

    def restore(self, slot: int, lane: int) -> None:
        """Restores a kept state on all ranks, and waits for their word. Raises as `keep`, also where another failed."""
        self._leader.send(Restore(slot, lane))
        try:
            self._steps.restore(slot, lane)
        finally:
            whole = self._leader.all_restored()
        if not whole:
            raise ReuseError("another rank does not have that state")

    def spill(self, slot: int, pages: tuple[int, ...]) -> Held:
        """Raises ReuseError: every rank would have to hold its own part."""
        raise ReuseError("states of several processes are not copied to the host")

    def refill(self, held: Held, slot: int, pages: tuple[int, ...]) -> None:
        """Raises ReuseError, as there is nothing to come back."""
        raise ReuseError("states of several processes are not copied to the host")

    def copy_page(self, source: int, target: int) -> None:
        """Copies a page on all ranks. Raises as `keep`."""
        self._leader.send(CopyPage(source, target))
        self._steps.copy_page(source, target)
