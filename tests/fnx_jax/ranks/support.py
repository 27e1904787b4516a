"""Ranks as threads of the test's own process, over the loopback, without a device."""

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fnx_jax.engine.fake import FakeSteps
from fnx_jax.engine.steps import DraftOutput, DraftPlan, RoundOutput, RoundPlan
from fnx_jax.ranks.follower import join
from fnx_jax.ranks.group import Group
from fnx_jax.ranks.leader import Leader
from fnx_jax.ranks.link import Link

FACTS = {"lanes": "4", "context": "512"}


def free_port() -> int:
    """A port of the loopback that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def group(**changes: Any) -> Group:
    """Rank 0 of two, impatient."""
    return replace(
        Group("127.0.0.1", free_port(), 2, 0, join_s=10, beat_s=0.05, silence_s=1.0, start_silence_s=1.0), **changes
    )


class Thread(threading.Thread):
    """Runs `work`; `result` joins and returns what it returned or raises what it raised."""

    def __init__(self, work: Callable[[], Any]):
        super().__init__(daemon=True)
        self._work, self._value, self._error = work, None, None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.join(20)
        assert not self.is_alive(), "the other rank hangs"
        if self._error is not None:
            raise self._error
        return self._value


class Losses:
    """Collects what `on_lost` is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._some = threading.Event()

    def __call__(self, why: str) -> None:
        self.told.append(why)
        self._some.set()

    def wait(self) -> str:
        assert self._some.wait(20), "nobody noticed"
        return self.told[0]


def let_in(zero: Group, *told: Any, **options: Any) -> Leader:
    """Rank 0, once all are there."""
    leader = Leader(zero, FACTS, *told, **options)
    leader.let_in()
    return leader


def pair(zero: Group, facts: dict[str, str] = FACTS, **leader: Any) -> tuple[Leader, Link, Losses, Losses]:
    """Two ranks that have joined, and what each is told of the other's loss."""
    lost_by_zero, lost_by_one = Losses(), Losses()
    one = Thread(lambda: join(replace(zero, rank=1), facts, lost_by_one))
    return let_in(zero, lost_by_zero, **leader), one.result(), lost_by_zero, lost_by_one


class RecordedSteps(FakeSteps):
    """Fake steps that keep what they were asked for."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.plans: list[RoundPlan | DraftPlan] = []
        self.commits: list[np.ndarray] = []
        self.reused: list[tuple] = []

    def round(self, plan: RoundPlan) -> RoundOutput:
        self.plans.append(plan)
        return super().round(plan)

    def draft(self, plan: DraftPlan) -> DraftOutput:
        self.plans.append(plan)
        return super().draft(plan)

    def commit(self, length_L: np.ndarray) -> None:
        self.commits.append(length_L)

    def keep(self, lane: int, length: int, slot: int) -> None:
        self.reused.append(("keep", lane, length, slot))
        super().keep(lane, length, slot)

    def restore(self, slot: int, lane: int) -> None:
        self.reused.append(("restore", slot, lane))
        super().restore(slot, lane)

    def copy_page(self, source: int, target: int) -> None:
        self.reused.append(("copy", source, target))
        super().copy_page(source, target)
