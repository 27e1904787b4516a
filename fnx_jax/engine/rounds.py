"""Host side: one round after another, on whatever thread calls. Read next: loop.py."""

import time
from collections.abc import Callable, Iterator

from fnx_jax.engine.request import Emission
from fnx_jax.engine.scheduler import Scheduler
from fnx_jax.engine.steps import Steps


def run_round(steps: Steps, scheduler: Scheduler, clock: Callable[[], float] = time.monotonic) -> Iterator[Emission]:
    """Admits, plans, runs and concludes one round, then drafts for the next one.

    Whatever the device raises in the round passes through; nothing is undone. Drafts that fail are lost and logged.
    """
    yield from scheduler.admit()
    begin_s = clock()  # planning is part of what a round costs
    planned = scheduler.plan()
    if planned is None:
        return
    output = steps.round(planned.plan)
    yield from scheduler.conclude(planned, output, clock() - begin_s)
    _draft(steps, scheduler, clock)


def _draft(steps: Steps, scheduler: Scheduler, clock: Callable[[], float]) -> None:
    begin_s = clock()
    plan = scheduler.plan_drafts()
    if plan is None:
        return
    try:
        output = steps.draft(plan)
    except Exception as error:
        scheduler.lose_drafts(plan, error, clock() - begin_s)
    else:
        scheduler.take_drafts(plan, output, clock() - begin_s)


def serve_rounds(steps: Steps, scheduler: Scheduler) -> Iterator[Emission]:
    """Runs rounds until every request submitted to the scheduler has ended."""
    while scheduler.has_work():
        yield from run_round(steps, scheduler)
