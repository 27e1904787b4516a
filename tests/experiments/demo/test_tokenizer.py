"""The tokenizer of the embedded checkpoint."""

import json
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from checkpoints.commands import DEMO
from experiments.demo import vocabulary


@pytest.fixture(scope="module")
def config() -> dict:
    return json.loads((DEMO / "config.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def test_added_tokens_stand_last_and_end_a_reply(tokenizer, config):
    added = vocabulary.added_ids(tokenizer)
    usable = tokenizer.get_vocab_size()
    assert sorted(added.values()) == list(range(usable - len(added), usable))
    assert config["text_config"]["eos_token_id"] == config["text_config"]["bos_token_id"] == added["<|endoftext|>"]
    defaults = json.loads((DEMO / "generation_config.json").read_text("utf-8"))
    assert defaults["eos_token_id"] == [added["<|im_end|>"], added["<|endoftext|>"]]
    assert tokenizer.encode("a<|im_end|>b</think>", add_special_tokens=False).ids[1::2] == [
        added["<|im_end|>"],
        added["</think>"],
    ]


@settings(deadline=None, max_examples=100)
@given(st.text())
def test_tokenizer_returns_any_text_in_composed_form(text):
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)


def test_tokenizer_splits_digits_and_keeps_emoji_and_line_ends(tokenizer):
    for text in ("naïve café 😀👩‍👩‍👧 1234\r\n\n\tdef f(x):\n", "日本語とпривет", "a\x00b"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert [tokenizer.decode([i]) for i in tokenizer.encode("2048").ids] == list("2048")
    assert len(tokenizer.encode("import os\nfor line in lines:").ids) < 10
