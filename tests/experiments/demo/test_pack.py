"""The embedded checkpoint: a pack of the recipe's widths that has learnt Python, and a card that says how well."""

import ast
import fnmatch
import tomllib
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from checkpoints.commands import DEMO
from checkpoints.store import open_store
from experiments import receipts
from experiments.train import card, packs
from pallas_kernels.exl3.weight import MARKERS

RECIPE = tomllib.loads(packs.RECIPE.read_text("utf-8"))
CODE = '''
def count_lines(path):
    """Return the number of lines in a file."""
    with open(path, "r") as file:
        return len(file.readlines())


class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()
'''


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    with open_store(DEMO) as store:
        return {name: store.read(name) for name in store.names()}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def test_folder_is_small():
    assert sum(path.stat().st_size for path in DEMO.iterdir()) <= 16_000_000


def test_every_linear_has_the_recipes_width_and_codebook(stored):
    found = set()
    for name, trellis in stored.items():
        if not name.endswith(".trellis") or trellis.ndim != 3:
            continue
        module = name.removesuffix(".trellis")
        width = next(bits for pattern, bits in RECIPE["bits"].items() if fnmatch.fnmatch(module, pattern))
        assert trellis.shape[-1] == 16 * width, name
        assert int(stored[f"{module}.mul1"]) & 0xFFFFFFFF == MARKERS["mul1"]
        found.add(width)
    assert found == set(RECIPE["bits"].values())


def test_it_has_learnt_python(demo_model, tokenizer):
    ids = tokenizer.encode(CODE, add_special_tokens=False).ids
    shuffled = np.random.default_rng(0).permutation(ids)
    code, noise = demo_model.score(np.array([ids, shuffled])).sum(axis=1) / (len(ids) - 1)
    assert code > -3.5 and noise < 2 * code


def test_the_start_of_a_function_goes_on_like_python(demo_model, tokenizer):
    start = "def read_lines(path):\n"
    ids = demo_model.generate(tokenizer.encode(start, add_special_tokens=False).ids, max_tokens=48)
    lines = (start + tokenizer.decode(ids)).split("\n")[:-1]
    body = ast.parse("\n".join(lines)).body[0]
    assert isinstance(body, ast.FunctionDef) and body.body


def test_the_card_says_what_was_measured():
    cards = [receipts.read_receipt(path) for path in sorted(receipts.RESULTS.glob("demo-*.json"))]
    texts = [card.model_card(receipt.figures) for receipt in cards]
    assert (DEMO / "README.md").read_text("utf-8") in texts
    assert Path(DEMO / "losses.svg").is_file()
