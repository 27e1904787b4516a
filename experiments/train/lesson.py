"""Host side: everything training reads, made once and kept in a folder: tokenizer and streams of tokens.

Read next: run.py.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int
from tokenizers import Tokenizer

from experiments.demo.sizes import Sizes, text_config
from experiments.demo.vocabulary import added_ids, train_tokenizer
from experiments.train.batches import stream
from experiments.train.chats import conversations
from experiments.train.corpus import Corpus
from experiments.train.errors import TrainingError
from experiments.train.folders import make_folder, write_whole
from fnx_jax.families.flash_next.config import FlashNextConfig, read_config

SIZES = Sizes(layers=4, heads=4, kv_heads=2, active_experts=2, ngram_base=20000)
"""The trained demo's: 6.4 M parameters outside its n-gram table."""

TALK_OF = 3
"""One conversation in so many is learnt, about a tenth of the text."""


@dataclass(frozen=True)
class Lesson:
    """train: the stream to learn from, modules and conversations mixed; held_out: modules alone, in order. int32 ids.

    held_out_bytes: UTF-8 bytes of the held-out modules, for bits per byte.
    """

    tokenizer: Tokenizer
    config: FlashNextConfig
    train: Int[np.ndarray, " S"]
    held_out: Int[np.ndarray, " S"]
    held_out_bytes: int


def prepare(folder: Path, corpus: Corpus, sizes: Sizes, seed: int) -> Lesson:
    """Trains the tokenizer and encodes the corpus, or reads what an earlier call for the same left in the folder.

    Raises: TrainingError where the folder is a file or holds a lesson from another corpus, size or seed.
    """
    make_folder(folder)
    mark, digest = folder / "lesson.json", _digest(corpus, sizes, seed)
    if mark.exists():
        found = json.loads(mark.read_text("utf-8"))["digest"]
        if found != digest:
            raise TrainingError(f"{folder}: holds a lesson {found}, but corpus, sizes and seed make {digest}")
    else:
        _make(folder, corpus, sizes, seed)
        write_whole(mark, json.dumps({"digest": digest}) + "\n")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = added_ids(tokenizer)["<|endoftext|>"]
    return Lesson(
        tokenizer=tokenizer,
        config=read_config({"model_type": "qwen4_exp", "text_config": text_config(sizes, end)}),
        train=np.load(folder / "train.npy"),
        held_out=np.load(folder / "held_out.npy"),
        held_out_bytes=sum(len(module.text.encode()) for module in corpus.held_out),
    )


def _make(folder: Path, corpus: Corpus, sizes: Sizes, seed: int) -> None:
    texts = [module.text for module in corpus.train]
    tokenizer = train_tokenizer(texts, sizes.bpe_tokens)
    end = added_ids(tokenizer)["<|endoftext|>"]
    mixed = texts + conversations(corpus.train)[::TALK_OF]
    order = np.random.default_rng(seed).permutation(len(mixed))
    np.save(folder / "train.npy", stream(tokenizer, [mixed[i] for i in order], end))
    np.save(folder / "held_out.npy", stream(tokenizer, [module.text for module in corpus.held_out], end))
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def _digest(corpus: Corpus, sizes: Sizes, seed: int) -> str:
    digest = hashlib.sha256(f"{sizes} {seed}".encode())
    for module in (*corpus.train, *corpus.held_out):
        digest.update(f"\0{module.name}\0{module.text}".encode())
    return digest.hexdigest()[:16]
