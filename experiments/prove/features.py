"""Host side: which values of the axes can be run, and which wait for a part of the system that is not there.

A value is not run because a list here says so, but because nothing below runs it. What says whether that is expected
is the system itself: once a parameter, field or program with a telling name stands there, it is not.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields

from experiments.prove.cells import AXES, Cell, Value
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.scheduler import Scheduler
from fnx_jax.engine.status import EngineStatus
from fnx_jax.engine.steps import RoundOutput, RoundPlan
from fnx_jax.lanes.programs import Programs
from fnx_jax.lanes.rounds import DeviceSteps
from fnx_jax.loading import load


@dataclass(frozen=True)
class Feature:
    """A part of the system that one value of an axis needs.

    brought_by: the step that builds it. places: where it will show: "load", "engine" or "device".
    words: parts of the names that it will show by.
    """

    brought_by: str
    places: tuple[str, ...]
    words: tuple[str, ...]


FEATURES: Mapping[tuple[str, Value], Feature] = {
    ("prefill", "deep"): Feature("deep prefill", ("load", "engine", "device"), ("deep", "segment")),
    ("place", "offloaded"): Feature(
        "offloaded experts", ("load", "engine", "device"), ("offload", "resident", "lines")
    ),
}
RUNNABLE = {axis: tuple(v for v in values if (axis, v) not in FEATURES) for axis, values in AXES.items()}
"""The values that suite.py runs. Who brings a feature takes it out of FEATURES and teaches suite.py to run it."""


def surface() -> dict[str, frozenset[str]]:
    """The names that the system shows at each place where a feature could appear."""
    engine = {*_parameters(Engine), *_parameters(Scheduler), *_fields(EngineConfig), *_fields(EngineStatus)}
    device = {*_fields(DeviceSteps), *_fields(Programs), *_fields(RoundPlan), *_fields(RoundOutput)}
    device |= {name for name in vars(DeviceSteps) if name[0] != "_"}
    return {"load": frozenset(_parameters(load)), "engine": frozenset(engine), "device": frozenset(device)}


def signs(feature: Feature, shown: Mapping[str, Iterable[str]]) -> list[str]:
    """The names in `shown` that tell of the feature, sorted."""
    names = {name for place in feature.places for name in shown[place]}
    return sorted(name for name in names if any(word in name for word in feature.words))


def missing(cell: Cell) -> list[tuple[str, Value]]:
    """The values of a cell that wait for a feature."""
    return [(axis, value) for axis, value in FEATURES if getattr(cell, axis) == value]


def _parameters(function: Callable[..., object]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _fields(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]
