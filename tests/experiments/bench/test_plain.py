"""The plain network of the bench is the model: its logits are the served ones but for rounding."""

import json

import jax
import numpy as np
import pytest

import fnx_jax
from checkpoints import open_store
from checkpoints.inventory import check
from experiments.bench.interleave import compare
from experiments.bench.plain.experts import moe
from experiments.bench.plain.forms import Forms
from experiments.bench.plain.weights import can_split, split_inputs
from experiments.bench.subjects import Plain, Served
from experiments.bench.synthetic import write_checkpoint
from experiments.demo.sizes import Sizes

SMALL = Sizes(vocabulary=256, hidden=64, layers=4, experts=4, active_experts=2, expert_ffn=32, shared_ffn=32)
TOKENS = np.random.default_rng(0).integers(5, 120, (2, 40)).astype(np.int32)


@pytest.fixture
def model(exact_model) -> fnx_jax.Model:
    """A golden case in float32, where forms differ by rounding alone."""
    return exact_model("base")


def test_prompt_and_next_rows_are_the_served_ones(model):
    forms = Forms(model.config, model.steps.device.shards, "sorted", height=4, chunk=8)
    served, plain = Served(model.steps), Plain(model, model.params, forms, lanes=2, reach=64)
    for lane, tokens in enumerate(TOKENS):
        wanted, found = (np.asarray(subject.prompt(lane, tokens[:30])) for subject in (served, plain))
        np.testing.assert_allclose(found[-1], wanted[29 % 16], atol=2e-3)
    for position in (30, 31):
        wanted, found = (np.asarray(subject.decode(TOKENS, position)) for subject in (served, plain))
        np.testing.assert_allclose(found, wanted[:2], atol=2e-3)
    assert not np.allclose(found[0], found[1], atol=2e-3)


def test_two_devices_give_whole_rows_of_logits(exact_model):
    model = exact_model("silu_two_ple", 2)
    forms = Forms(model.config, model.steps.device.shards, "sorted", height=2, sums=can_split(model.params))
    params = split_inputs(model.params, model.steps.device.mesh) if forms.sums else model.params
    served, plain = Served(model.steps), Plain(model, params, forms, lanes=2, reach=64)
    wanted, found = (np.asarray(subject.decode(TOKENS, 0)) for subject in (served, plain))
    assert found.shape == (2, model.config.vocabulary)
    np.testing.assert_allclose(found, wanted[:2], atol=2e-3)


def test_every_form_of_experts_is_the_same_function(model):
    x = np.random.default_rng(1).standard_normal((6, model.config.hidden), np.float32)
    found = []
    for form in ("sorted", "gather", "dense"):
        forms = Forms(model.config, model.steps.device.shards, form, height=2)
        found.append(np.asarray(jax.jit(lambda x, p, f=forms: moe(x, p, f))(x, model.params.layers[0].moe)))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    np.testing.assert_allclose(found[0], found[2], atol=1e-5)


def test_the_random_checkpoint_is_a_checkpoint(tmp_path):
    with open_store(write_checkpoint(tmp_path, SMALL)) as store:
        assert check(store).mtp_layers == 0
    assert json.loads((tmp_path / "config.json").read_text())["hidden_size"] == 64


def test_a_thing_costs_as_much_as_itself_in_calls():
    calls = []
    found = compare(lambda: calls.append("a"), lambda: calls.append("b"), repeats=2)
    assert calls == ["a", "b", *"abba", *"abba"]
    assert found.repeats == 2 and found.low <= found.ratio <= found.high
