"""What is learnt, and the model to beat."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from experiments.train.backoff import backoff
from experiments.train.chats import conversations
from experiments.train.corpus import Module, library
from experiments.train.lesson import prepare
from tests.experiments.train import tiny

SOURCE = '''
def {name}(a, b):
    """Adds {name} to what was there before."""
    return a + b
'''


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A library of forty modules, with folders that are left out."""
    root = tmp_path_factory.mktemp("lib")
    for i in range(40):
        folder = root / ("test" if i % 10 == 3 else "kept")
        folder.mkdir(exist_ok=True)
        (folder / f"module_{i}.py").write_text(SOURCE.format(name=f"name_{i}"), "utf-8")
    (root / "_sysconfigdata__linux.py").write_text("a = 1", "utf-8")
    return root


def test_split_depends_on_names_alone(root):
    corpus = library(root)
    names = [module.name for module in corpus.train + corpus.held_out]
    assert len(names) == len(set(names)) == 36 and corpus.held_out
    assert not any("test" in name or "_sysconfigdata" in name for name in names)
    (root / "kept" / "module_99.py").write_text("x = 1", "utf-8")
    more = library(root)
    (root / "kept" / "module_99.py").unlink()
    assert set(corpus.held_out) <= set(more.held_out) and set(corpus.train) <= set(more.train)


def test_lesson_is_made_once_and_no_other_is_taken_for_it(root, tmp_path):
    sizes = dataclasses.replace(tiny.SIZES, vocabulary=384, bpe_tokens=280)
    made = prepare(tmp_path, library(root), sizes, seed=1)
    again = prepare(tmp_path, library(root), sizes, seed=1)
    assert np.array_equal(made.train, again.train) and np.array_equal(made.held_out, again.held_out)
    text = made.tokenizer.decode(made.held_out.tolist(), skip_special_tokens=True)
    assert all(module.text in text for module in library(root).held_out)
    assert not any(module.text in text for module in library(root).train)
    learnt = made.tokenizer.decode(made.train.tolist(), skip_special_tokens=False)
    assert all(module.text in learnt for module in library(root).train) and "<|im_start|>user" in learnt
    own = [module.text.split("def ")[1].split("(")[0] for module in library(root).held_out]
    assert own and not any(f"{name} " in learnt or f"{name}(" in learnt for name in own)  # no talk about them either
    with pytest.raises(ValueError, match="holds a lesson"):
        prepare(tmp_path, library(root), sizes, seed=2)


def test_conversations_end_their_turns():
    (talk,) = conversations((Module("kept/a.py", SOURCE.format(name="total")), Module("broken.py", "def (")))
    assert "<|im_start|>user\nAdds total to what was there before.<|im_end|>" in talk
    assert "<think>\nThis is total of kept/a.py.\n</think>" in talk and talk.endswith("```<|im_end|>\n")
    assert "def total(a, b):" in talk


def test_backoff_is_a_distribution_and_prefers_what_it_has_seen():
    model = backoff(np.array([0, 1, 2, 0, 1, 2, 0, 1, 3, 4, 1, 2], np.int32), vocabulary=6)
    for context in ([0, 1], [4, 4], [5, 5], [2, 0]):
        every = np.exp([model.log_probabilities(np.array([*context, token]))[0] for token in range(6)])
        assert abs(every.sum() - 1) < 1e-12 and every.min() > 0
    seen, rare = (model.log_probabilities(np.array([0, 1, token]))[0] for token in (2, 3))
    assert seen > rare
    for context in ([0, 1], [4, 1], [5, 1], [5, 5]):
        found = np.exp([model.log_probabilities(np.array([*context, token]))[0] for token in range(6)])
        wanted = [by_hand([0, 1, 2, 0, 1, 2, 0, 1, 3, 4, 1, 2], context, token, 6) for token in range(6)]
        assert np.allclose(found, wanted, rtol=1e-12)
    with pytest.raises(ValueError):
        backoff(np.array([1, 2]), 6)


def by_hand(text: list[int], context: list[int], token: int, vocabulary: int) -> float:
    """Interpolated Kneser-Ney from sets and counts of tuples."""
    grams = Counter(zip(text, text[1:], text[2:], strict=False))
    p = 1 / vocabulary
    for order in (1, 2, 3):
        counts = grams if order == 3 else Counter(gram[-order:] for gram in lower(grams, order))
        once, twice = (sum(count == n for count in counts.values()) for n in (1, 2))
        discount = once / max(once + 2 * twice, 1)
        head = tuple(context[3 - order :])
        after = {gram[-1]: count for gram, count in counts.items() if gram[:-1] == head}
        if after:
            p = (max(after.get(token, 0) - discount, 0) + discount * len(after) * p) / sum(after.values())
    return p


def lower(grams: Counter, order: int) -> set[tuple[int, ...]]:
    """The distinct n-grams one longer than `order`."""
    return {gram[2 - order :] for gram in grams}
