"""Host side: the first row and layer at which two runs of a request part, from runs of it layer by layer.

A side is served again as it was, and the streams of the request's rows are noted after every half of a layer.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.prove.compare import Difference
from experiments.prove.record import Past, Recorder, no_past, serve
from fnx_jax.engine.drafting.streams import Drafter
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.plan import Drafts
from fnx_jax.engine.request import Request
from fnx_jax.lanes.layered import LayeredPrograms, layered_programs
from fnx_jax.lanes.rounds import DeviceSteps

Stage = tuple[int, int]
"""Half a layer: the layer and 0 for its token mixer, 1 for its experts; layer -1 is the embedding."""
Trace = dict[tuple[int, Stage], str]
"""Digest of a row's streams by position and stage."""


def trace(
    steps: DeviceSteps,
    requests: Sequence[Request],
    config: EngineConfig | None,
    drafts: Drafts | None,
    streams: int,
    difference: Difference,
    drafter: Drafter | None = None,
    past: Past = no_past,
) -> Trace:
    """Serves as `record` does up to the group of the difference's request. Returns its rows before the difference."""
    at = next(i for i, request in enumerate(requests) if request.id == difference.request)
    for first in range(0, at + 1, streams):
        rounds: list[dict[tuple[int, int, Stage], str]] = []
        recorder = Recorder(steps)
        with _stages_seen(steps, recorder, rounds):
            group = requests[first : first + streams]
            _, records = serve(recorder, group, config, drafts, drafter, past(group))
    found: Trace = {}
    for noted, held in zip(rounds[-len(records) :], records, strict=True):
        mine = {lane.lane for lane in held.lanes if lane.request_id == difference.request}
        for (lane, position, stage), digest in noted.items():
            if lane in mine and position < difference.position:
                found[position, stage] = digest
    return found


def first_place(wanted: Trace, found: Trace) -> str:
    """In words, where two traces first differ: by position, then from the bottom of the network to its top.

    Rows before the first that both have are left out: a resumed prompt has not run them.
    """
    begin = max((min(position for position, _ in side) for side in (wanted, found) if side), default=0)
    for position, stage in sorted(wanted.keys() | found.keys()):
        if position >= begin and wanted.get((position, stage)) != found.get((position, stage)):
            return f"{_name(stage)}, row {position}"
    return "the head" if wanted else "no layer: nothing was noted"


def _name(stage: Stage) -> str:
    layer, half = stage
    return "the embedding" if layer < 0 else f"layer {layer} ({('mixer', 'experts')[half]})"


@contextmanager
def _stages_seen(steps: DeviceSteps, recorder: Recorder, rounds: list[dict]) -> Iterator[None]:
    """Notes every tile's streams in the round that the recorder is in."""
    programs = steps.programs
    layers = _layers(steps)

    def rows(params: Any, lanes: Any, tile: Any, pages_LP: Any) -> Any:
        while len(rounds) <= len(recorder.rounds):
            rounds.append({})
        return _watched(layers, tile.places, rounds[-1]).run_rows(params, lanes, tile, pages_LP)

    steps.programs = replace(programs, rows=rows)
    try:
        yield
    finally:
        steps.programs = programs


def _layers(steps: DeviceSteps) -> LayeredPrograms:
    """The layer programs that the steps run, else ones of the same model."""
    running = getattr(steps.programs.rows, "__self__", None)
    if isinstance(running, LayeredPrograms):
        return running
    device = steps.device
    return layered_programs(device.config, device.shards, device.mesh, steps.page)


def _watched(layers: LayeredPrograms, places: Any, noted: dict) -> LayeredPrograms:
    """The same programs, whose streams are noted as they go by."""
    stages = iter([(-1, 1), *((layer, half) for layer in range(len(layers.config.layer_kinds)) for half in (0, 1))])

    def note(streams: Any) -> None:
        stage, rows_BN = next(stages), np.asarray(streams)
        for b in np.flatnonzero(places.live_B):
            key = int(places.lane_B[b]), int(places.position_B[b]), stage
            noted[key] = hashlib.blake2b(rows_BN[b].tobytes(), digest_size=16).hexdigest()

    def embed(*arguments: Any) -> Any:
        streams = layers.embed(*arguments)
        note(streams)
        return streams

    def first_half(*arguments: Any) -> Any:
        state, mixed = layers.first_half(*arguments)
        note(mixed.streams)
        return state, mixed

    def second_half(*arguments: Any) -> Any:
        streams = layers.second_half(*arguments)
        note(streams)
        return streams

    return replace(layers, embed=embed, first_half=first_half, second_half=second_half)
