"""Host side: one trial from its files to its cells: the reference on one device, then every check on one and several.

Read next: checks.py.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fnx_jax
from experiments.prove.compare import smallest_margin
from experiments.prove.record import Recording
from experiments.prove.search.cells import Cell
from experiments.prove.search.checkpoint import write_trial
from experiments.prove.search.checks import Checks, reference
from experiments.prove.search.streams import draw_requests
from experiments.prove.search.trials import Trial

DEVICES_MOST = 4


def run_trial(trial: Trial, every_count: bool = False) -> Iterator[Cell]:
    """Writes a trial into a folder of its own, and yields its cells.

    every_count: run on all of the trial's numbers of devices that are not refused, not only on the first of several.
    The reference is one device's, whether 1 is among them or not.
    Raises: whatever loading or running raises, besides a refusal of a number of devices.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_trial(Path(folder), trial)
        yield from _cells(Path(folder), trial, every_count)


def _cells(folder: Path, trial: Trial, every_count: bool) -> Iterator[Cell]:
    requests, several = draw_requests(trial), False
    one = _load(folder, trial, 1)
    wanted = reference(one.steps, requests)
    yield _network(one, wanted, trial.dtype)
    for count in trial.devices:
        if several and not every_count:
            return
        try:
            model = one if count == 1 else _load(folder, trial, count)
        except ValueError as error:
            yield _refusal(one.config, count, trial.dtype, str(error))
            continue
        several = count > 1
        checks = Checks(trial, requests, wanted, model.steps, count)
        yield checks.walk(poisoned=False)
        yield checks.walk(poisoned=True)
        yield checks.company()
        yield checks.drafts()
        if count == 1:
            yield checks.chunks()


def _load(folder: Path, trial: Trial, devices: int) -> fnx_jax.Model:
    arithmetic = None if trial.dtype == "served" else trial.dtype
    return fnx_jax.load(folder, devices, arithmetic, lanes=trial.lanes, context=trial.context, max_rows=trial.max_rows)


def _network(model: fnx_jax.Model, wanted: Recording, dtype: str) -> Cell:
    """Whether the network itself was put to work: rows and replies that differ, and what of attention they reached."""
    config, replies = model.config, wanted.replies.values()
    longest = max(len(reply.rows) for reply in replies)
    rows = [row for reply in replies for row in reply.rows.values()]
    evidence = {
        "rows": len(rows),
        "distinct_rows": len({row.digest for row in rows}),
        "distinct_best_tokens": len({row.best for row in rows}),
        "blocks_left_out": max(0, longest // config.block - config.kept_blocks) if config.attention_layers else 0,
        "pages_of_a_lane": -(-longest // model.steps.page),
    }
    faults = [f"{name}: {reply.finish}" for name, reply in wanted.replies.items() if reply.finish != "length"]
    if evidence["distinct_rows"] < 0.9 * len(rows) or evidence["distinct_best_tokens"] < 3:
        faults.append("rows are all alike")
    if not smallest_margin(wanted) > 0:
        faults.append("two best logits are equal, or not finite")
    first = "; ".join(faults)
    return Cell("reference", 1, dtype, "unchecked" if faults else "equal", len(rows), evidence, first)


def _refusal(config: Any, devices: int, dtype: str, reason: str) -> Cell:
    """A refusal must name a number of the config that the devices do not divide."""
    counts = (config.leaves, config.heads, config.kv_heads, config.delta_key_heads)
    named = any(count % devices and f" {count} " in reason for count in counts)
    good = named and reason.startswith(f"devices={devices} ")
    return Cell("load", devices, dtype, "refused" if good else "unequal", first=reason)
