"""Host side: one trial from its files to its cells: the reference on one device, then every check on 1, 2 and 4.

Read next: checks.py.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import fnx_jax
from experiments.prove.search.checkpoint import write_trial
from experiments.prove.search.checks import Cell, Checks, Reference, draw_requests, load, reference
from experiments.prove.search.trials import Trial

DEVICES = (1, 2, 4)


def run_trial(trial: Trial, devices: Sequence[int] = DEVICES) -> Iterator[Cell]:
    """Writes a trial into a folder of its own, and yields its cells in both arithmetics as the trial says.

    devices: numbers to run on, 1 among them or not; the reference is always one device's.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_trial(Path(folder), trial)
        for dtype in trial.dtypes:
            yield from _cells(Path(folder), trial, devices, dtype)


def _cells(folder: Path, trial: Trial, devices: Sequence[int], dtype: str) -> Iterator[Cell]:
    one = load(folder, trial, 1, dtype)
    wanted = reference(one.steps, draw_requests(trial))
    yield _exercised(one, wanted, dtype)
    for count in devices:
        try:
            model = one if count == 1 else load(folder, trial, count, dtype)
        except ValueError as error:
            yield _refusal(one.config, count, dtype, str(error))
            continue
        checks = Checks(trial, wanted, model.steps, count, dtype)
        yield checks.walk(poisoned=False)
        yield checks.walk(poisoned=True)
        yield checks.company()
        yield checks.drafts()
        if count == 1:
            yield checks.chunks()


def _exercised(model: fnx_jax.Model, wanted: Reference, dtype: str) -> Cell:
    """Whether the network itself was put to work: finite logits that spread, and what of attention the rows reached."""
    config, logits = model.config, np.concatenate(wanted.logits)
    longest = max(len(tokens) for tokens in wanted.tokens)
    two = np.partition(logits, -2, axis=1)[:, -2:]
    selected = max(0, longest // config.block - config.kept_blocks) if config.attention_layers else 0
    evidence = {
        "rows": len(logits),
        "distinct_reply_tokens": len({token for reply in wanted.replies.values() for token in reply}),
        "blocks_left_out": selected,
        "pages_of_a_lane": -(-longest // model.steps.page),
        "least_margin_bits": int(np.abs(two[:, 0].view(np.int32) - two[:, 1].view(np.int32)).min()),
    }
    alive = bool(np.isfinite(logits).all()) and logits.std() > 0.1 and evidence["distinct_reply_tokens"] > 1
    first = "" if alive else "logits are not finite, or all alike"
    return Cell("reference", 1, dtype, "equal" if alive else "unchecked", len(logits), evidence, first)


def _refusal(config, devices: int, dtype: str, reason: str) -> Cell:
    """A refusal must name a number of the config that the devices do not divide."""
    counts = (config.leaves, config.heads, config.kv_heads, config.delta_key_heads)
    named = [count for count in counts if count % devices and f" {count} " in reason]
    good = reason.startswith(f"devices={devices} ") and named
    return Cell("load", devices, dtype, "refused" if good else "unequal", first=reason)
