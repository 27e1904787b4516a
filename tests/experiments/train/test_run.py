"""Training lowers the loss, and where it is cut changes no bit of what comes out."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from checkpoints.commands import EXIT_USAGE, execute
from experiments import train_demo
from experiments.train import run
from experiments.train.folders import alone
from experiments.train.optimiser import Pace
from experiments.train.phase import Phase
from experiments.train.steps import Training, draft_step, network_step
from tests.experiments.train import tiny

PLAN = run.Plan(
    rows=2,
    length=16,
    steps=6,
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


def leave_halves(folder: Path, phase: str) -> None:
    """What a kill in the middle of a line or of a checkpoint leaves."""
    with (folder / f"{phase}.jsonl").open("a") as log:
        log.write('{"phase": "netw')
    (folder / phase / "99.orbax-checkpoint-tmp-0").mkdir()


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
        leave_halves(tmp_path, phase)
    for change, told in (({"seed": 2}, "seed 1, now 2"), ({"rate": 2e-2}, "rate 0.01, now"), ({"steps": 8}, "plan 8")):
        with pytest.raises(ValueError, match=told):
            run.train(tiny.lesson(), dataclasses.replace(PLAN, **change), tmp_path)
    resumed = run.train(tiny.lesson(), PLAN, tmp_path)
    pairs = zip(jax.tree.leaves(resumed.params), jax.tree.leaves(whole[0].params), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert np.array_equal(resumed.table, whole[0].table)
    assert programs(network_step) == programs(draft_step) == 1  # resuming compiles nothing anew
    steps = [json.loads(line)["step"] for line in (tmp_path / "network.jsonl").read_text().splitlines()]
    assert steps == [2, 4, 6]


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


def test_table_learns_in_the_rows_that_are_read_alone(whole):
    moved = np.flatnonzero((np.asarray(whole[0].table) != np.asarray(tiny.learner(PLAN.seed).table)).any(axis=1))
    batches = run.batches_of(tiny.stream(), tiny.batches().hash, PLAN)
    read = [batches.batch(step).ngram for step in range(PLAN.steps)]
    assert 0 < len(moved) < len(whole[0].table) and set(moved) <= set(np.unique(read))


def test_finished_run_is_not_trained_again_and_a_shorter_plan_is_refused(whole):
    _, folder, _ = whole
    lines = []
    run.train(tiny.lesson(), PLAN, folder, lines.append)
    assert not lines
    with pytest.raises(ValueError, match="step 6 of 6, too late to plan 5"):
        run.train(tiny.lesson(), dataclasses.replace(PLAN, steps=5), folder)


def test_level_steps_do_not_depend_on_how_many_there_are():
    short, long = Pace(1.0, 10, 2, 0.5), Pace(1.0, 20, 2, 0.5)
    rates, longer = ([float(pace.schedule()(step)) for step in range(10)] for pace in (short, long))
    assert short.level_steps == 5 and rates[:6] == longer[:6] == [0, 0.5, 1, 1, 1, 1]
    assert np.allclose(rates[5:], [1, 0.8, 0.6, 0.4, 0.2])


@pytest.mark.parametrize(
    "change",
    ({"draft_steps": 0}, {"rows": 0}, {"warmup": 0}, {"warmup": 5}, {"rate": 0.0}, {"cooldown": 1.5}, {"depths": 16}),
)
def test_plan_that_makes_no_sense_is_refused(change):
    with pytest.raises(ValueError, match=f"Plan: .*{next(iter(change))} "):
        dataclasses.replace(PLAN, **change)


def test_command_says_which_flag_makes_no_sense(tmp_path, capsys):
    argv = ["train_demo", f"--work={tmp_path / 'work'}", "--draft-steps=0"]
    assert execute(train_demo.main, train_demo.FLAGS, argv) == EXIT_USAGE
    assert "draft_steps 0" in capsys.readouterr().err and not (tmp_path / "work").exists()


def test_folder_that_is_a_file_and_one_at_work_are_refused(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match="a folder was wanted"):
            run.train(tiny.lesson(), PLAN, place)
    with alone(tmp_path), pytest.raises(ValueError, match="another process"):
        run.train(tiny.lesson(), PLAN, tmp_path)


def test_step_that_is_not_finite_is_told_and_not_saved(tmp_path):
    phase = Phase(tmp_path, "bad", PLAN.pace(4), {}, report_steps=100, save_s=0, report=lambda line: None)
    finite = {"loss": np.float32(1), "norm": np.float32(1)}

    def step(training, batch):
        done = training.step + 1
        return training.replace(step=done), finite | ({"norm": np.float32(np.inf)} if done == 2 else {})

    with pytest.raises(FloatingPointError, match="norm before step 2"):
        phase.run(Training(np.int32(0), np.zeros(3), ()), step, tiny.batches(), None)
    assert sorted(path.name for path in (tmp_path / "bad").iterdir()) == ["1"]


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
    with pytest.raises(ValueError, match="16 held-out tokens"):
        run.held_out_loss(dataclasses.replace(tiny.lesson(), held_out=tiny.stream(16)), batches.hash, PLAN)


def test_rows_read_the_ngrams_of_the_whole_stream_wherever_windows_are_cut():
    batches = tiny.batches()
    text = batches.stream.copy()
    text[50:60:5] = batches.hash.eos
    whole = dataclasses.replace(batches, stream=text, length=len(text) - 1).at(np.array([0])).ngram[0]
    cut = dataclasses.replace(batches, stream=text).at(np.array([0, 45, 53]))
    for first, token_T, ngram_TH in zip((0, 45, 53), cut.token, cut.ngram, strict=True):
        assert np.array_equal(token_T, text[first : first + 17])
        assert np.array_equal(ngram_TH, whole[first : first + 16])
