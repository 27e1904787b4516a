"""Host side: the proof at library level: models of one checkpoint on several devices, in this process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import jax

import fnx_jax
from checkpoints.errors import CheckpointError
from experiments.prove.claims import tally, waiting
from experiments.prove.plan import Size, make_plan
from experiments.prove.report import Proof
from experiments.prove.suite import Suite
from fnx_jax.model import Model

LANES = 4


class NotLoaded(ValueError):
    """The checkpoint does not allow what was asked for: so many devices, so long a context."""


def prove_library(
    path: str,
    dtype: str | None,
    size: Size,
    tp: Sequence[int],
    seed: int,
    cache_dir: str,
    progress: Callable[[str], None],
    begin_s: float,
) -> Proof:
    """Runs a plan on a checkpoint.

    Args: tp: numbers of devices, 1 among them. cache_dir: for compiled programs, empty for none.
    Raises: CheckpointError; NotLoaded; whatever the device raised outside of a cell.
    """
    if not Path(path).is_dir():
        raise CheckpointError(f"{path}: no such folder")
    if cache_dir:
        jax.config.update("jax_compilation_cache_dir", cache_dir)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_num_cpu_devices", max(tp))  # a CPU's cores stand for as many devices as are asked for
    plan = make_plan(size, tp, seed)
    context = -(-plan.workload.positions // 64) * 64
    fingerprints = {}

    def load(devices: int) -> Model:
        progress(f"loading {path} on {devices} device{'s' * (devices > 1)}")
        try:
            model = fnx_jax.load(path, devices, dtype, lanes=LANES, context=context, draft_head=False)
        except ValueError as error:
            raise NotLoaded(str(error)) from error
        fingerprints[devices] = asdict(model.fingerprint) | {"checkpoint": model.checkpoint_digest}
        return model

    results = Suite(load, plan.workload, progress).run(plan)
    return Proof(
        subject=path,
        tallies=tally(results, plan.not_run, plan.left_out),
        results=results,
        unchecked=waiting(plan.not_run),
        seconds=time.perf_counter() - begin_s,
        facts={"fingerprints": fingerprints, "size": size, "tp": list(tp), "seed": seed, "dtype": dtype or "served"},
    )
