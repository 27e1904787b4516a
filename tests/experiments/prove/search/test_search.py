"""Five trials of the search have no unequal cell; a wrong commit, a lost row and a bad refusal are found."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from checkpoints.commands import UsageError, execute
from experiments import receipts
from experiments.prove.compare import differences
from experiments.prove.record import Recording, Row
from experiments.prove.search import __main__ as command
from experiments.prove.search import trial_run, walk
from experiments.prove.search.cells import Cell, failed
from experiments.prove.search.checks import tile_counts
from experiments.prove.search.log import Line, Log
from experiments.prove.search.recording import Stream
from experiments.prove.search.trial_run import run_trial
from experiments.prove.search.trials import draw_trial

ON_ONE = {"walk", "poison", "solo", "drafts", "chunk"}


@pytest.mark.parametrize(
    ("number", "devices", "refused"),
    [(24, (1, 2, 4), {2, 4}), (99, (1,), set()), (30, (1,), set()), (91, (1,), set()), (96, (2,), set())],
)
def test_no_cell_is_unequal(number, devices, refused):
    cells = list(run_trial(replace(draw_trial(0, number), devices=devices)))
    assert not failed(cells), [cell for cell in cells if failed([cell])]
    assert {cell.devices for cell in cells if cell.status == "refused"} == refused
    for count in set(devices) - refused:
        checks = {cell.check for cell in cells if cell.devices == count and cell.check != "reference"}
        assert checks == (ON_ONE if count == 1 else ON_ONE - {"chunk"})


def test_a_commit_past_the_kept_rows_is_found(monkeypatch):
    lengths = walk._lengths
    monkeypatch.setattr(
        walk, "_lengths", lambda walkers, lanes: np.where(lengths(walkers, lanes), lengths(walkers, lanes) + 1, 0)
    )
    cells = {cell.check: cell for cell in run_trial(replace(draw_trial(0, 24), devices=(1,)))}
    assert cells["walk"].status == "unequal" and "logits" in cells["walk"].first
    assert cells["solo"].status == "equal"  # an engine's rounds commit nothing


def test_a_row_run_again_stands_for_what_it_replaces():
    stream = Stream()
    for position, token in ((0, 5), (1, 6), (2, 7), (1, 8), (2, 9)):
        stream.put(position, token, Row(str(token), token, 1.0))
    assert stream.tokens == [5, 8, 9]
    wanted = Recording({"a": stream.reply(2, (9, 4), "length")}, ())
    assert list(wanted.replies["a"].rows) == [1, 2, 3]
    del stream.rows[-1]
    (lost,) = differences(wanted, Recording({"a": stream.reply(2, (9, 4), "length")}, ()))
    assert lost.what == "missing" and lost.position == 3


def test_one_number_of_several_devices_is_enough_unless_every_one_is_asked_for(monkeypatch):
    loaded = []

    def load(folder, trial, devices):
        loaded.append(devices)
        if len(loaded) == 2:
            raise ValueError(f"devices={devices} does not divide the 3 query heads")
        return SimpleNamespace(steps=None, config=SimpleNamespace(leaves=1, heads=3, kv_heads=1, delta_key_heads=1))

    quiet = SimpleNamespace(**{name: lambda *a, **k: None for name in ("walk", "company", "drafts", "chunks")})
    for name, fake in (("_load", load), ("reference", None), ("_network", None), ("Checks", quiet)):
        monkeypatch.setattr(trial_run, name, fake if callable(fake) else lambda *arguments, value=fake: value)
    trial = replace(draw_trial(0, 4), devices=(1, 4, 2, 8))
    assert [cell.status for cell in run_trial(trial) if cell] == ["refused"] and loaded == [1, 4, 2]
    loaded.clear()
    assert [cell.status for cell in run_trial(trial, every_count=True) if cell] and loaded == [1, 4, 2, 8]


def test_rounds_without_a_subject_exercise_nothing():
    assert not tile_counts(())["shared_tiles"]
    assert failed([Cell("solo", 1, "served", "unchecked")])
    assert not failed([Cell("load", 2, "served", "refused"), Cell("solo", 1, "served", "equal")])


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("devices=2 does not divide the 3 query heads", "refused"),
        ("devices=2 does not divide the 4 query heads", "unequal"),
        ("devices=4 does not divide the 3 query heads", "unequal"),
        ("no", "unequal"),
    ],
)
def test_a_refusal_must_name_what_does_not_divide(reason, status):
    config = SimpleNamespace(leaves=4, heads=3, kv_heads=4, delta_key_heads=4)
    assert trial_run._refusal(config, 2, "served", reason).status == status


def test_a_search_goes_on_where_it_was_stopped(tmp_path, capsys):
    path = tmp_path / "lines"
    cells = (Cell("solo", 1, "served", "equal", 7, {"shared_tiles": 2}), Cell("walk", 1, "served", "unequal", 3))
    first = Log(path, 0, "here")
    first.add(Line(draw_trial(0, 3), cells, 1.5))
    assert "--seed=0 --only=3" in capsys.readouterr().out
    again = Log(path, 0, "here")
    assert again.done[3].cells == cells
    assert again.figures([3])["cells"] == {"equal": 1, "unequal": 1} and again.figures([3])["rows_compared"] == 10
    assert again.digest([3]) == first.digest([3])
    again.done[3] = replace(again.done[3], cells=cells[:1])
    assert again.digest([3]) != first.digest([3])
    assert not Log(path, 0, "elsewhere").done and not Log(path, 1, "here").done


def test_a_line_that_was_not_finished_is_dropped(tmp_path):
    path = tmp_path / "lines"
    cells = (Cell("solo", 1, "served", "equal", 7),)
    for number in (3, 4):
        Log(path, 0, "here").add(Line(draw_trial(0, number), cells, 1.5))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    again = Log(path, 0, "here")
    assert list(again.done) == [3]
    again.add(Line(draw_trial(0, 4), cells, 1.5))
    assert path.read_bytes() == whole
    path.write_text("no JSON\n")
    with pytest.raises(UsageError, match="no file of trials"):
        Log(path, 0, "here")


def test_trials_on_one_number_of_devices_do_not_count_where_every_one_is_asked_for(tmp_path, monkeypatch):
    ran, written = [], []

    def trial(drawn, every_count):
        ran.append(every_count)
        return [Cell("solo", 1, "served", "equal", 7)]

    monkeypatch.setattr(receipts, "source_state", lambda folder: ("1" * 40, False))
    monkeypatch.setattr(command, "_configure_jax", lambda programs: None)
    monkeypatch.setattr(command, "run_trial", trial)
    monkeypatch.setattr(command, "write_receipt", written.append)
    monkeypatch.setattr(command.jax, "clear_caches", lambda: None)
    asked = ["search", "--configs=1", f"--out={tmp_path / 'lines'}", "--receipt"]
    for more in ([], [], ["--every_count"], ["--every_count"]):
        assert execute(command.main, command.FLAGS, [*asked, *more]) == 0
    assert ran == [False, True]
    assert [receipt.command.endswith("--every_count") for receipt in written] == [False, False, True, True]
