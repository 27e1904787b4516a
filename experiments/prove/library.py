"""Host side: the proof at library level: models of one checkpoint on several devices, in this process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import jax

import fnx_jax
from checkpoints import open_store
from checkpoints.errors import CheckpointError
from experiments.prove.claims import tally, waiting
from experiments.prove.plan import Size, make_plan
from experiments.prove.record import digest
from experiments.prove.report import Proof
from experiments.prove.suite import Suite
from fnx_jax.families import FAMILIES
from fnx_jax.model import Model

LANES = 4
CONTEXT = 128
"""Positions of a lane are a multiple of it, so that runs of several sizes share their compiled programs."""
PROMPT_CACHE_BYTES = 2 << 30
"""Room for the states of as many prompts as run together, at every mark: a small model takes a small part of it."""


DEVICE_COUNTS = (1, 2, 4)


class NotLoaded(ValueError):
    """Neither this machine nor the checkpoint allows what was asked for: so many devices, so long a context."""


def prepare_jax(devices: int, cache_dir: str) -> None:
    """Before jax starts: where programs are kept, and as many CPU devices as are asked for, whatever the cores."""
    if cache_dir:
        jax.config.update("jax_compilation_cache_dir", cache_dir)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_num_cpu_devices", devices)


def device_counts(path: str, asked: Sequence[int] | None) -> list[int]:
    """The numbers of devices to prove at; where none are asked for, those of 1, 2 and 4 that this machine has.

    Raises: CheckpointError for a folder without a known config.json; NotLoaded where a number cannot be had.
    """
    store = open_store(path)
    try:
        values = store.config or {}
    finally:
        store.close()
    family = FAMILIES.get(values.get("model_type", ""))
    if family is None:
        raise CheckpointError(f"{path}: no config.json of a known model_type; known: {', '.join(FAMILIES)}")
    config, there = family.read_config(values), len(jax.devices())
    counts = list(asked) if asked else [count for count in DEVICE_COUNTS if count <= there]
    for count in counts:
        if count > there:
            raise NotLoaded(f"devices={count}, but this machine has {there}")
        try:
            family.deal(config, count)
        except ValueError as error:
            raise NotLoaded(str(error)) from error
    return counts


def prove_library(
    path: str,
    dtype: str | None,
    size: Size,
    asked: Sequence[int] | None,
    seed: int,
    cache_dir: str,
    progress: Callable[[str], None],
    begin_s: float,
) -> Proof:
    """Runs a plan on a checkpoint.

    Args: asked: numbers of devices, 1 among them, or None. cache_dir: for compiled programs, empty for none.
    Raises: CheckpointError; NotLoaded; whatever the device raised outside of a cell.
    """
    if not Path(path).is_dir():
        raise CheckpointError(f"{path}: no such folder")
    prepare_jax(max(asked or DEVICE_COUNTS), cache_dir)
    tp = device_counts(path, asked)
    plan = make_plan(size, tp, seed)
    context = -(-plan.workload.positions // CONTEXT) * CONTEXT
    fingerprints = {}

    def load(devices: int) -> Model:
        progress(f"loading {path} on {devices} device{'s' * (devices > 1)}")
        try:
            model = fnx_jax.load(
                path, devices, dtype, lanes=LANES, context=context, prompt_cache_bytes=PROMPT_CACHE_BYTES
            )
        except ValueError as error:
            raise NotLoaded(str(error)) from error
        fingerprints[devices] = asdict(model.fingerprint) | {"checkpoint": model.checkpoint_digest}
        return model

    suite = Suite(load, plan.workload, progress)
    results = suite.run(plan)
    return Proof(
        subject=path,
        tallies=tally(results, plan.not_run, plan.left_out),
        results=results,
        unchecked=waiting(plan.not_run),
        seconds=time.perf_counter() - begin_s,
        facts={"fingerprints": fingerprints, "size": size, "tp": list(tp), "seed": seed, "dtype": dtype or "served"},
        hashes={sampling: digest(recording) for sampling, recording in suite.references.items()},
    )
