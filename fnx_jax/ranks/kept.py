"""Host side: kept states of one rank that follows. What it could not keep or restore costs all ranks that state alone.

Rank 0 need not know what failed here: it asks for a state only where a prompt may resume from it, and then hears
whether this rank has it. Read next: follower.py.
"""

import logging

from fnx_jax.engine.steps import ReuseError
from fnx_jax.ranks.steps import Called

logger = logging.getLogger(__name__)


class KeptHere:
    """Rank 0's calls about kept states, made on `steps`. None raises ReuseError."""

    def __init__(self, steps: Called):
        self._steps = steps
        self._slots: set[int] = set()  # those that hold what rank 0 thinks they do
        self._copied = True  # whether the page that goes with the next call does

    def copy_page(self, source: int, target: int) -> None:
        """Copies a page, which belongs to the state that is kept or restored next."""
        try:
            self._steps.copy_page(source, target)
        except ReuseError as error:
            self._copied = False
            logger.warning("a page of a kept state could not be copied here: %s", error)

    def keep(self, lane: int, length: int, slot: int) -> None:
        """Keeps a lane's state. Where that fails, no slot is what it was."""
        self._slots.discard(slot)
        try:
            self._steps.keep(lane, length, slot)
        except ReuseError as error:
            self._slots.clear()
            logger.warning("a prompt's state could not be kept here: %s", error)
        else:
            if self._copied:
                self._slots.add(slot)
        self._copied = True

    def restore(self, slot: int, lane: int) -> bool:
        """Restores a state, with the page that was copied for it. Whether it was here, and that worked."""
        whole, self._copied = self._copied and slot in self._slots, True
        if whole:
            try:
                self._steps.restore(slot, lane)
            except ReuseError as error:
                logger.warning("a prompt's state could not be restored here: %s", error)
                return False
        return whole
