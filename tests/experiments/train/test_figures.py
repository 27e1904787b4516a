"""The parts of the card that need no trained model."""

import dataclasses
import math
import xml.etree.ElementTree

import jax
import numpy as np
import pytest

from experiments.demo_figures import digest, refuse_others, replace_folder, smooth
from experiments.train import card, held_out
from experiments.train.acceptance import accepted, draft_logits
from experiments.train.backoff import backoff
from experiments.train.batches import ngram_hash
from experiments.train.curve import curve
from experiments.train.export import MODEL_FILE
from experiments.train.figures import Sample
from experiments.train.losses import Batch, Learner
from experiments.train.run import Trained
from pallas_kernels.keyed_noise import gumbel_noise, seed_words
from tests.experiments.train import tiny

FIGURES = {
    "python": "3.11",
    "calibration": 64,
    "parameters": {"network": 6_400_000, "table": 5_100_000},
    "tokens": {"train": 2_700_000, "held_out": 170_000},
    "bytes_per_token": 3.5,
    "trigram": 3.0,
    "experts": [[0.5, 0.5], [1.0, 0.0]],
    "bf16": {"loss": 2.75},
    "demo": {"loss": 2.8, "agreement": 0.93, "kl": 0.021},
    "accepted_bf16": {"temperature_0": [0.61, 0.5], "temperature_1": [0.41, float("nan")]},
    "accepted_demo": {"temperature_0": [0.6, 0.5], "temperature_1": [0.4, 0.3]},
} | {
    f"bits_{bits}{kind}": {"loss": 3 - bits / 20, "agreement": 0.9, "kl": 0.1}
    for bits in (2, 3, 4)
    for kind in ("", "_no_ldlq")
}


def test_card_shows_every_figure_and_says_which_model_is_better():
    text = card.model_card(FIGURES)
    assert "6.4 M parameters" in text and "5.1 M in the n-gram table" in text
    assert "0.250 nats a token below that of" in text
    bits_a_byte = 2.75 / math.log(2) / 3.5
    assert f"| bf16 | 2.750 | 15.6 | {bits_a_byte:.2f} |  |  |" in text and "| 0.930 | 0.021 |" in text
    assert "| this pack, greedy | 0.60 | 0.50 |" in text and "| bf16, temperature 1 | 0.41 | nan |" in text
    assert "| 0 | 0.500 | 0.500 | 2.0 of 2 |" in text and "| 1 | 0.000 | 1.000 | 1.0 of 2 |" in text
    assert "0.500 nats a token above" in card.model_card(FIGURES | {"trigram": 2.25})


def test_curve_is_a_picture_of_its_points():
    text = curve({"a": [(0, 8.0), (100, 3.0)]}, {"level": 3.5}, "step", "loss")
    lines = [node for node in xml.etree.ElementTree.fromstring(text) if node.tag.endswith("polyline")]
    (first, last), level = (
        [tuple(map(float, place.split(","))) for place in node.attrib["points"].split()] for node in lines
    )
    assert first[0] < last[0] and first[1] < level[0][1] < last[1] and level[0][1] == level[1][1]
    with pytest.raises(ValueError):
        curve({"a": [(0, 1.0)]}, {}, "step", "loss")
    assert smooth([(0, 1.0), (1, 2.0)], keep=0.5) == [(0, 1.0), (1, 1.5)]


def test_folder_is_replaced_whole_and_one_with_other_files_is_refused(tmp_path):
    pack, out = tmp_path / "pack.safetensors", tmp_path / "demo"
    pack.write_bytes(b"weights")
    refuse_others(out, {"README.md"})
    (tmp_path / "demo.unfinished").mkdir()
    (tmp_path / "demo.unfinished" / "half").touch()
    for card_text in ("first", "second"):
        refuse_others(out, {"README.md", pack.name})
        replace_folder(out, [pack], {"README.md": card_text})
        assert {file.name: file.read_text() for file in out.iterdir()} == {pack.name: "weights", "README.md": card_text}
    assert not (tmp_path / "demo.unfinished").exists()
    with pytest.raises(ValueError, match=r"holds README\.md"):
        refuse_others(out, {pack.name})
    with pytest.raises(ValueError, match="a folder was wanted"):
        refuse_others(pack, {})


def test_another_checkpoint_has_figures_of_its_own(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        digest(tmp_path, Sample(), 1)
    (tmp_path / MODEL_FILE).write_bytes(b"one")
    first = digest(tmp_path, Sample(), 1)
    assert digest(tmp_path, Sample(), 1) == first != digest(tmp_path, Sample(windows=8), 1)
    (tmp_path / MODEL_FILE).write_bytes(b"two")
    assert digest(tmp_path, Sample(), 1) != first


def test_windows_are_cut_from_the_whole_stream():
    text = held_out.windows(np.arange(100), count=4, length=10)
    assert text.token_BT[:, 0].tolist() == [1, 30, 60, 90] and text.before_B.tolist() == [0, 29, 59, 89]
    assert text.token_BT[3].tolist() == list(range(90, 100))
    model = backoff(np.arange(100), vocabulary=128)
    one = model.log_probabilities(np.arange(29, 40))
    assert np.isclose(
        held_out.backoff_loss(model, held_out.Windows(text.token_BT[1:2], text.before_B[1:2])), -one.mean()
    )
    with pytest.raises(ValueError, match="window"):
        held_out.windows(np.arange(5), 1, 10)


@pytest.mark.parametrize("temperature", (0.0, 1.0))
def test_a_reply_that_is_the_draft_is_accepted_and_another_is_not(temperature):
    config = tiny.config(kinds=("attention",))  # one layer, which compiles sooner
    layer = dataclasses.replace(tiny.params().layers[1], ngram=None)
    params = dataclasses.replace(tiny.params(), layers=(layer,))
    learner, hash_ = Learner(params, tiny.learner().table), ngram_hash(config)
    text = np.stack([tiny.stream(8), tiny.stream(16)[8:]])
    window = np.concatenate([np.full((2, 2), hash_.eos, np.int32), text], axis=1)
    drafts = draft_logits(learner, params, Batch(text, hash_.row_ids(window)), config, 2)
    logits = np.asarray(drafts[0]).reshape(*text.shape, -1)[:, 1]
    position, ids = np.full(2, 3, np.int32), np.arange(config.vocabulary, dtype=np.int32)[None]
    seeds = np.stack([seed_words(0), seed_words(1)])
    noise = np.asarray(jax.jit(gumbel_noise)(seeds, np.zeros(2, np.int32), position, ids))
    text[:, 3], text[:, 4:] = (logits + noise * temperature).argmax(axis=1), -1  # the replies end after one token
    trained = Trained(params, learner.table)
    first, second = accepted(trained, config, hash_, text, 3, 2, temperature)
    assert first == 1.0 and np.isnan(second)
    text[1, 3] = (text[1, 3] + 1) % 60
    assert accepted(trained, config, hash_, text, 3, 2, temperature)[0] == 0.5
