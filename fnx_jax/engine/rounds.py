"""Host side: one round after another, on whatever thread calls. Read next: loop.py."""

import time
from collections.abc import Callable, Iterator

from fnx_jax.engine.request import Emission
from fnx_jax.engine.scheduler import Scheduler
from fnx_jax.engine.steps import Steps


def run_round(steps: Steps, scheduler: Scheduler, clock: Callable[[], float] = time.monotonic) -> Iterator[Emission]:
    """Admits, plans, runs and concludes one round. Whatever the device raises passes through; nothing is undone."""
    yield from scheduler.admit()
    planned = scheduler.plan()
    if planned is None:
        return
    begin_s = clock()
    output = steps.round(planned.plan)
    yield from scheduler.conclude(planned, output, clock() - begin_s)


def serve_rounds(steps: Steps, scheduler: Scheduler) -> Iterator[Emission]:
    """Runs rounds until every request submitted to the scheduler has ended."""
    while scheduler.has_work():
        yield from run_round(steps, scheduler)
