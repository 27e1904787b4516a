"""Training lowers the loss, and where it is cut changes no bit of what comes out."""

import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pytest

from experiments.train import run
from experiments.train.steps import draft_step, network_step
from tests.experiments.train import tiny

PLAN = run.Plan(
    rows=2,
    length=16,
    steps=4,
    draft_steps=2,
    depths=2,
    rate=1e-2,
    warmup=1,
    report_steps=2,
    save_s=1e9,
    held_out_batches=1,
)


@pytest.fixture(scope="module", autouse=True)
def loose_dtypes():
    """The optimisers' library mixes dtypes, which the suite forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield


class Stopped(Exception):
    """What ends a run early."""


def stop_at(step: int, phase: str):
    def report(line: dict) -> None:
        if line["step"] == step and line["phase"] == phase:
            raise Stopped

    return report


def programs(step: Any) -> int:
    """How many times a step has been compiled."""
    return step._cache_size()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, loose_dtypes):
    """An uninterrupted run that saves at the end of a phase only, its folder, and the lines it told."""
    folder, lines = tmp_path_factory.mktemp("whole"), []
    return run.train(tiny.lesson(), PLAN, folder, lines.append), folder, lines


def test_interrupted_run_ends_with_the_same_bits(whole, tmp_path):
    saving = dataclasses.replace(PLAN, save_s=0)
    for step, phase in ((4, run.NETWORK), (2, run.DRAFT)):
        with pytest.raises(Stopped):
            run.train(tiny.lesson(), saving, tmp_path, stop_at(step, phase))
    resumed = run.train(tiny.lesson(), PLAN, tmp_path)
    pairs = zip(jax.tree.leaves(resumed.params), jax.tree.leaves(whole[0].params), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert np.array_equal(resumed.table, whole[0].table)
    assert programs(network_step) == programs(draft_step) == 1  # resuming compiles nothing anew
    steps = [json.loads(line)["step"] for line in (tmp_path / "network.jsonl").read_text().splitlines()]
    assert steps == [2, 4]


def test_loss_goes_down_and_both_phases_move(whole):
    trained, _, lines = whole
    network = [line["loss"] for line in lines if line["phase"] == run.NETWORK]
    assert network[-1] < network[0] - 0.1
    started = tiny.params(PLAN.seed)
    for part in (
        lambda p: p.head,
        lambda p: p.layers[0].mixer.qkv,
        lambda p: p.layers[1].mixer.index,
        lambda p: p.mtp.fc_hidden,
    ):
        assert not np.array_equal(part(trained.params), part(started))


def test_every_parameter_learns(whole):
    trained = jax.tree.leaves(whole[0].params)
    started, paths = jax.tree.leaves(tiny.params(PLAN.seed)), jax.tree_util.tree_leaves_with_path(whole[0].params)
    still = [
        jax.tree_util.keystr(path)
        for (path, _), a, b in zip(paths, trained, started, strict=True)
        if np.array_equal(a, b)
    ]
    assert not still


def test_finished_run_is_not_trained_again_and_a_shorter_plan_is_refused(whole):
    _, folder, _ = whole
    lines = []
    run.train(tiny.lesson(), PLAN, folder, lines.append)
    assert not lines
    with pytest.raises(ValueError, match="step 4"):
        run.train(tiny.lesson(), dataclasses.replace(PLAN, steps=3), folder)


def test_batches_depend_on_seed_and_step_alone():
    batches = tiny.batches()
    again, other = tiny.batches(), dataclasses.replace(batches, seed=6)
    far = batches.steps_per_epoch + 1
    assert np.array_equal(batches.batch(far).token, again.batch(far).token)
    assert not np.array_equal(batches.batch(far).token, other.batch(far).token)
    epoch = np.concatenate([batches.batch(step).token[:, 0] for step in range(batches.steps_per_epoch)])
    assert len(epoch) == batches.rows * batches.steps_per_epoch
    with pytest.raises(ValueError, match="holds no batch"):
        run.batches_of(tiny.stream(40), batches.hash, PLAN)
