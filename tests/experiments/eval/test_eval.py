"""Evaluations compute what they say, for models whose answers are known."""

import json
import math

import numpy as np
import pytest

from checkpoints import open_store
from checkpoints.commands import EXIT_USAGE, execute
from checkpoints.write import write_safetensors
from experiments.eval import fidelity, perplexity

VOCABULARY = 11
IDS = np.random.default_rng(0).integers(0, VOCABULARY, (3, 7)).astype(np.int32)
LOGITS = np.random.default_rng(1).standard_normal((3, 7, VOCABULARY)).astype(np.float32)


class Known:
    """Gives logits that a test has chosen, whatever the model would say."""

    def __init__(self, logits_BTV: np.ndarray):
        self.rows = list(logits_BTV)

    def logits(self, token_ids: np.ndarray) -> np.ndarray:
        return self.rows.pop(0)


class Scored:
    def __init__(self, logprob_BT: np.ndarray):
        self.logprob_BT = logprob_BT

    def score(self, ids_BT: np.ndarray, lengths_B: np.ndarray | None = None) -> np.ndarray:
        return self.logprob_BT


def test_uniform_model_is_as_perplexed_as_its_vocabulary_is_large():
    result = perplexity.evaluate(Scored(np.full((3, 7), -math.log(VOCABULARY), np.float32)), IDS)
    assert (result.rows, result.tokens) == (3, 18)
    assert result.perplexity == pytest.approx(VOCABULARY, rel=1e-5) and result.error == pytest.approx(0, abs=1e-6)


def test_only_tokens_of_a_row_after_its_first_are_scored():
    logprob = np.full((2, 5), -100, np.float32)
    logprob[0, 1:3], logprob[1, 1:5] = -1, -2
    result = perplexity.evaluate(Scored(logprob), np.zeros((2, 5), np.int32), np.array([3, 5]))
    assert result.tokens == 6 and result.nats == pytest.approx(10 / 6)
    # Of a ratio: sqrt(n sum((x - mean c)^2) / (n - 1)) / sum(c).
    assert result.error == pytest.approx(math.sqrt(2 * 2 * (2 - 20 / 6) ** 2) / 6)


def test_row_of_one_token_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        perplexity.evaluate(Scored(np.zeros((1, 3))), IDS[:1, :3], np.array([1]))


@pytest.fixture
def reference(tmp_path):
    fidelity.write_reference(Known(LOGITS), IDS, VOCABULARY, tmp_path / "reference.safetensors")
    with open_store(tmp_path / "reference.safetensors") as store:
        yield store


def test_model_agrees_with_itself(reference):
    result = fidelity.evaluate(Known(LOGITS), reference)
    assert (result.tokens, result.agreement, result.disagreements) == (21, 1, [])
    assert result.kl == pytest.approx(0, abs=1e-6)


def test_disagreement_comes_with_both_margins(reference):
    changed = LOGITS.copy()
    order = np.argsort(LOGITS[1, 4])
    first, second = int(order[-1]), int(order[-2])
    changed[1, 4, second] = LOGITS[1, 4, first] + 0.25
    result = fidelity.evaluate(Known(changed), reference)
    (found,) = result.disagreements
    assert (found.row, found.position, found.reference, found.found) == (1, 4, first, second)
    assert found.found_margin == pytest.approx(0.25, abs=1e-5)
    assert found.reference_margin == pytest.approx(float(LOGITS[1, 4, first] - LOGITS[1, 4, second]), abs=1e-5)
    assert result.agreement == pytest.approx(20 / 21)


def test_divergence_is_that_of_the_formula(reference):
    other = np.random.default_rng(2).standard_normal(LOGITS.shape).astype(np.float32)
    p, q = (np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum(-1, keepdims=True) for x in (LOGITS, other))
    kl = (p * np.log(p / q)).sum(-1)
    result = fidelity.evaluate(Known(other), reference)
    assert result.kl == pytest.approx(kl.mean(), rel=1e-4) and result.kl_worst == pytest.approx(kl.max(), rel=1e-4)


def test_tie_goes_to_the_lower_id_and_is_no_agreement(tmp_path):
    tied, other = np.zeros((1, 1, 3), np.float32), np.array([[[0, 1, 0]]], np.float32)
    fidelity.write_reference(Known(tied), np.zeros((1, 1), np.int32), 3, tmp_path / "tie.safetensors")
    with open_store(tmp_path / "tie.safetensors") as store:
        (found,) = fidelity.evaluate(Known(other), store).disagreements
    assert (found.reference, found.found, found.reference_margin) == (0, 1, 0)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"ids": IDS}, "logits of 3 axes"),
        ({"ids": IDS[:2], "logits": LOGITS}, "do not fit"),
        ({"ids": IDS, "logits": LOGITS[..., :5].copy()}, "5 logits a token"),
    ],
)
def test_reference_that_does_not_fit_is_refused(tmp_path, tensors, message):
    write_safetensors(tmp_path / "bad.safetensors", tensors)
    with open_store(tmp_path / "bad.safetensors") as store, pytest.raises(ValueError, match=message):
        fidelity.evaluate(Known(LOGITS), store)


@pytest.mark.parametrize(
    ("module", "argv"), [(perplexity, []), (fidelity, []), (fidelity, ["--reference=a", "--write_reference=b"])]
)
def test_arguments_without_sense_are_refused(module, argv, capsys):
    assert execute(module.main, module.FLAGS, ["eval", *argv]) == EXIT_USAGE
    assert "wanted" in capsys.readouterr().err


def test_commands_on_a_model_give_the_numbers_of_the_library(golden, tmp_path, monkeypatch, capsys):
    class Stub(Known):
        config = type("Config", (), {"vocabulary": VOCABULARY})
        checkpoint_digest, fingerprint = "digest", "bits"

        def score(self, ids_BT, lengths_B=None):
            return np.full(ids_BT.shape, -1, np.float32)

    asked = []
    for module in (perplexity, fidelity):
        monkeypatch.setattr(module, "load_model", lambda *arguments: (asked.append(arguments), Stub(LOGITS))[1])
    np.save(tmp_path / "ids.npy", IDS)
    out, file = tmp_path / "out.jsonl", tmp_path / "reference.safetensors"
    text = f"--text={tmp_path / 'ids.npy'}"
    assert execute(perplexity.main, perplexity.FLAGS, ["p", text, "--columns=7", f"--out={out}"]) == 0
    assert json.loads(capsys.readouterr().out)["perplexity"] == pytest.approx(math.e)
    assert execute(fidelity.main, fidelity.FLAGS, ["f", text, "--columns=7", f"--write_reference={file}"]) == 0
    capsys.readouterr()
    assert execute(fidelity.main, fidelity.FLAGS, ["f", f"--reference={file}", f"--out={out}"]) == 0
    assert json.loads(capsys.readouterr().out)["agreement"] == 1
    assert [json.loads(line)["evaluation"] for line in out.read_text().splitlines()] == ["perplexity", "fidelity"]
    assert [arguments[-1] for arguments in asked] == [7, 7, 7]
