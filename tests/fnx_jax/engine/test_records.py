"""Round records: tiles, kinds of rows, and who is told."""

import logging

from fnx_jax.engine.fake import FakeSteps
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.records import LaneRows, RoundLog, RoundRecord
from fnx_jax.engine.request import Request, SamplingParams
from fnx_jax.engine.rounds import run_round
from fnx_jax.engine.scheduler import Scheduler


def test_tiles_show_which_lanes_and_kinds_share_them():
    steps = FakeSteps(lanes=3, max_rows=32, row_tile=8)
    scheduler = Scheduler(steps, drafts=lambda lane: (1, 2) if lane.request.id == "a" else ())
    sampling = SamplingParams(max_tokens=30)
    scheduler.submit(Request("a", (3, 4), sampling))
    list(run_round(steps, scheduler))
    scheduler.submit(Request("b", (5,) * 9, sampling))
    emitted = list(run_round(steps, scheduler))
    record = list(scheduler.records)[-1]
    assert record.number == 1 and record.rows == 12
    assert record.lanes == (LaneRows(0, "a", decode=1, verify=2), LaneRows(1, "b", prompt=9))
    assert [tile.lanes for tile in record.tiles] == [
        (LaneRows(0, "a", decode=1, verify=2), LaneRows(1, "b", prompt=5)),
        (LaneRows(1, "b", prompt=4),),
    ]
    assert [(tile.shared, tile.mixed) for tile in record.tiles] == [(True, True), (False, False)]
    assert record.committed == tuple((emission.request_id, emission.tokens) for emission in emitted)


def test_log_keeps_the_newest_and_survives_its_reader(caplog):
    seen = []

    def reader(record):
        seen.append(record.number)
        raise RuntimeError("reader")

    log = RoundLog(2, reader)
    with caplog.at_level(logging.ERROR):
        for number in range(3):
            log.append(RoundRecord(number, (), (), (), 0.0))
    assert [record.number for record in log] == [1, 2]
    assert seen == [0, 1, 2] and len(caplog.records) == 3


def test_seconds_are_those_from_the_plan_to_the_results():
    steps = FakeSteps(lanes=1)
    scheduler = Scheduler(steps, EngineConfig())
    scheduler.submit(Request("a", (3,), SamplingParams(max_tokens=1)))
    ticks = iter([10.0, 12.5, 13.0])
    list(run_round(steps, scheduler, lambda: next(ticks)))
    assert [record.seconds for record in scheduler.records] == [2.5]
