"""A small proof from end to end on a golden case, and one with a planted fault, which is found where it was planted."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from experiments import receipts
from experiments.prove.cells import Cell
from experiments.prove.claims import tally, waiting
from experiments.prove.plan import ProofPlan, make_plan
from experiments.prove.report import COLUMNS, Proof, print_proof, proof_receipt, remarks, rows, write_json
from experiments.prove.streams import Workload
from experiments.prove.suite import Suite
from experiments.receipts import note_origin, read_receipt, write_receipt
from tests.fnx_jax.lanes.slotted import with_slots

SMALL = Workload(prompts=(18, 6, 3, 9), replies=(4, 6, 5, 4))


@pytest.fixture
def suite(exact_model):
    with with_slots(exact_model("base").steps, 12):
        yield Suite(lambda devices: exact_model("base"), SMALL)


def proof(suite, plan):
    results = suite.run(plan)
    left_out = plan.left_out
    return Proof("base", tally(results, plan.not_run, left_out), results, waiting(plan.not_run), 1.0, {"seed": 0})


def test_a_small_proof_is_green(suite, tmp_path, capsys, monkeypatch):
    plan = make_plan("quick", [1], seed=0)
    # Drafts of a random head are never taken, so they would be no evidence.
    cells = tuple(replace(cell, drafts="off") if cell.drafts == "head" else cell for cell in plan.cells)
    found = proof(suite, replace(plan, cells=cells))
    assert remarks(found)[-1].startswith("GREEN: base, "), remarks(found)
    for name in ("solo", "plain", "fresh", "chunk"):
        (row,) = [row for row in rows(found) if row[0] == name]
        cells, equal, unequal = map(int, row[1:4])
        assert cells == equal > 0 == unequal and float(row[-1]) > 0
    print_proof(found)
    shown = capsys.readouterr().out
    assert "claim" in shown and "UNCHECKED place=offloaded" in shown
    write_json(found, tmp_path / "proof.json")
    value = json.loads((tmp_path / "proof.json").read_text())
    monkeypatch.setattr(receipts, "source_state", lambda folder: ("0" * 40, False))
    receipt = read_receipt(write_receipt(proof_receipt(note_origin(), found, "a device"), tmp_path / "results"))
    assert receipt.what == "prove-base" and receipt.figures["claims"]["solo"]["unequal"] == 0
    assert set(receipt.margins) == {"solo", "plain", "fresh", "chunk"}
    assert value["green"] and len(value["cells"]) == len(found.results) and len(COLUMNS) == len(rows(found)[0])


def planted(layers, wrong_layer):
    """Layer programs in which one mixer disturbs the last live row of every tile that two lanes share."""

    def first_half(streams, layer, state, folded, tile, pages, ngram):
        state, mixed = layers.first_half(streams, layer, state, folded, tile, pages, ngram)
        calls.append(tile)
        places, live = tile.places, np.flatnonzero(tile.places.live_B)
        shared = len(set(places.lane_B[live])) > 1
        if (len(calls) - 1) % len(layers.config.layer_kinds) == wrong_layer and shared:
            values = np.array(mixed.streams)
            values[live[-1], 0] = np.nextafter(values[live[-1], 0], np.float32(9))
            mixed = mixed.replace(streams=jax.device_put(values, mixed.streams.sharding))
        return state, mixed

    calls = []
    return replace(layers, first_half=first_half)


def test_a_planted_fault_is_found_with_its_layer_and_row(suite):
    steps = suite.model(1).steps
    whole = steps.programs
    plan = ProofPlan((Cell(streams=4, chunk=512), Cell(chunk=5)), (), SMALL)
    steps.programs = replace(whole, rows=planted(whole.rows.__self__, 4).run_rows)
    try:
        found = proof(suite, plan)
    finally:
        steps.programs = whole
    solo = next(line for line in found.tallies if line.claim == "solo")
    assert (solo.cells, solo.unequal) == (1, 1) and not found.green
    assert "layer 4 (mixer), row " in solo.first
    assert [result.unequal for result in found.results] == [True, False]
    assert any(line.startswith("UNEQUAL ") for line in remarks(found))


def test_a_cell_whose_run_fails_is_a_result(suite):
    steps = suite.model(1).steps
    whole = steps.programs
    suite.references["greedy"] = suite.record(Cell())

    def fails(params, streams):
        raise RuntimeError("planted")

    steps.programs = replace(whole, logits=fails)
    try:
        found = suite.result(Cell(chunk=5))
    finally:
        steps.programs = whole
    assert found.unequal and "planted" in found.error
    assert not suite.result(Cell(chunk=5)).unequal


def test_a_resumed_cell_that_resumed_nothing_is_unchecked(suite):
    suite.references["greedy"] = suite.record(Cell())
    cell = Cell(start="resumed", chunk=5)
    assert not suite.result(cell).unequal and not suite.result(cell).unexercised
    steps = suite.model(1).steps
    slots, steps.slots = steps.slots, 0
    try:
        found = suite.result(cell)
    finally:
        steps.slots = slots
    assert not found.unequal
    assert found.unexercised == ("no prompt began behind a kept state", "no state was resumed at an odd row")


def test_a_state_that_is_wrong_is_found_with_its_row(suite):
    steps = suite.model(1).steps
    suite.references["greedy"] = suite.record(Cell())
    working = steps.kept.restore

    def forgets(state, slot, lane):
        restored = working(state, slot, lane)
        delta = restored.cache.delta
        wrong = replace(delta[0], committed=delta[0].committed.at[lane].mul(np.float32(0.5)))
        return replace(restored, cache=replace(restored.cache, delta=(wrong, *delta[1:])))

    steps.kept.restore = forgets
    try:
        (found,) = suite._located([suite.result(Cell(start="resumed"))])
    finally:
        del steps.kept.restore
    assert found.unequal and found.differences[0].what == "logits"
    assert found.differences[0].place == "layer 0 (mixer), row 1"  # of the shortest prompt, behind its state
