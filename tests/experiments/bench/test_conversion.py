"""An estimate follows from what is counted, what is measured and what is assumed, each in its own unit."""

import json

import pytest

from checkpoints.commands import EXIT_USAGE, execute
from checkpoints.converter.searches import Searches
from experiments.bench import conversion
from experiments.bench.conversion import Device, Estimate, figures, hours_on

KIND = Searches("layers", rings=2048, length=256, bits=4)


def test_hours_are_those_of_the_longer_of_two_and_of_launches():
    slow = Device(operations_per_s=1e9, share=0.5, bytes_per_s=1e15, step_s=1.0)
    found = hours_on(slow, KIND)
    assert found.arithmetic * 3600 == pytest.approx(6 * 2 * 256 * 2048 * 65536 / 0.5e9)
    assert found.launches * 3600 == pytest.approx(2 * 2 * 256)  # two blocks, two passes
    assert found.total == pytest.approx(found.arithmetic + found.launches)
    narrow = Device(operations_per_s=1e15, share=1, bytes_per_s=1e9, step_s=0)
    assert hours_on(narrow, KIND).total * 3600 == pytest.approx(9 * 4096 * 2 * 256 * 2048 / 1e9)


def test_a_device_of_the_same_share_is_as_much_faster_as_its_arithmetic(monkeypatch):
    monkeypatch.setattr(conversion, "candidates_per_s", lambda bits, *_: 1e9 * bits)
    monkeypatch.setattr(conversion, "full_size_searches", lambda *_: [KIND])
    seen: list[Estimate] = []
    monkeypatch.setattr(conversion, "_print", seen.extend)
    flags = ["--cpu_gops=100", "--gpu_gops=10000", "--gpu_gbps=1e9", "--step_us=0"]
    assert execute(conversion.main, conversion.FLAGS, ["bench", *flags]) == 0
    (found,) = seen
    assert found.rate == 4e9 and found.share == pytest.approx(0.24)
    assert found.core_hours == pytest.approx(KIND.candidates / 4e9 / 3600)
    assert found.h200.total == pytest.approx(found.core_hours / 100)
    assert json.loads(json.dumps(figures(seen)))["h200_hours_estimated"] == found.h200.total


def test_a_core_of_unknown_speed_is_asked_for(capsys):
    assert execute(conversion.main, conversion.FLAGS, ["bench"]) == EXIT_USAGE
    assert "--cpu_gops" in capsys.readouterr().err


def test_the_measured_rate_is_of_a_real_search(monkeypatch):
    searched = []
    monkeypatch.setattr(conversion, "search_rings", lambda target, bits: searched.append((target.shape, bits)))
    assert conversion.candidates_per_s(3, 16, 2) > 0
    assert searched == [((16, 256), 3)] * 3
