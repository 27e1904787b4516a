"""Trials are drawn from a seed and a number alone, are unlike, and become checkpoints that load as such."""

from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest

from checkpoints import open_store
from checkpoints.inventory import check
from experiments.prove.search.checkpoint import write_trial
from experiments.prove.search.streams import draw_requests
from experiments.prove.search.trials import draw_trial
from fnx_jax.families.flash_next.config import read_config


def test_a_trial_is_its_seed_and_number():
    assert draw_trial(3, 7) == draw_trial(3, 7)
    assert draw_requests(draw_trial(3, 7)) == draw_requests(draw_trial(3, 7))
    assert draw_trial(3, 7) != draw_trial(3, 8) and draw_trial(3, 7).text != draw_trial(4, 7).text


def test_a_hundred_trials_reach_every_choice():
    trials = [draw_trial(0, number) for number in range(100)]
    configs = [read_config({"model_type": "qwen4_exp_text"} | trial.text) for trial in trials]
    assert {trial.form for trial in trials} == {"bf16", "f16", "exl3"}
    assert {trial.dtype for trial in trials} == {"served", "float32"}
    assert {trial.devices for trial in trials} == {(1, 2, 4), (1, 4, 2)}
    assert {frozenset(config.layer_kinds) for config in configs} == {
        frozenset({"delta"}),
        frozenset({"attention"}),
        frozenset({"delta", "attention"}),
    }
    for field in ("block", "streams", "delta_taps", "ngram_size", "heads", "kv_heads", "delta_key_heads", "leaves"):
        seen = Counter(getattr(config, field) for config in configs)
        assert len(seen) >= 3 and max(seen.values()) < 90, field
    assert sum(config.vocabulary % 128 != 0 for config in configs) > 50
    assert any(len(trial.lengths) > trial.lanes for trial in trials), "no trial has more streams than lanes"
    assert all(sum(pair) <= t.context for t in trials for pair in zip(t.lengths, t.replies, strict=True))
    first = [[request.prompt[0] for request in draw_requests(trial)] for trial in trials]
    assert all(len(set(tokens)) == len(tokens) for tokens in first)


@pytest.mark.parametrize("number", range(12))
def test_every_tensor_is_accounted_for_and_finite(number, tmp_path):
    trial = draw_trial(1, number)
    write_trial(tmp_path, trial)
    with open_store(tmp_path) as store:
        assert check(store).mtp_layers == trial.text["mtp_num_hidden_layers"]
        floats = [store.read(name) for name in store.names() if store.info(name).dtype in ("BF16", "F16")]
    assert all(np.isfinite(values.astype(np.float32)).all() for values in floats)


def test_the_same_trial_has_the_same_bytes(tmp_path):
    trial = draw_trial(0, 5)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_trial(tmp_path / name, trial)
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_trial_can_be_written_as_json():
    assert asdict(draw_trial(0, 0))["text"]["model_type"] == "qwen4_exp_text"
