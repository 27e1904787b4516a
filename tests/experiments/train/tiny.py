"""A network of two layers, one of each kind, and random text to train it on."""

import dataclasses
import functools

import jax
import numpy as np

from experiments.demo.sizes import Sizes, text_config
from experiments.train.batches import Batches, ngram_hash
from experiments.train.lesson import Lesson
from experiments.train.losses import Learner
from experiments.train.start import first_params, first_table
from fnx_jax.families.flash_next.config import FlashNextConfig, read_config
from fnx_jax.families.flash_next.params import ModelParams

SIZES = Sizes(
    vocabulary=64,
    bpe_tokens=60,
    hidden=16,
    stream_rank=4,
    layers=4,
    heads=2,
    kv_heads=1,
    head_size=8,
    index_heads=2,
    index_size=8,
    index_budget=8,
    delta_key_heads=1,
    delta_value_heads=2,
    delta_size=8,
    experts=4,
    active_experts=2,
    expert_ffn=8,
    shared_ffn=8,
    ngram_base=20,
    ngram_hidden=32,
    context=64,
)


@functools.cache
def config(budget: int = 8, kinds: tuple[str, ...] = ("delta", "attention")) -> FlashNextConfig:
    """budget: tokens of kept blocks. kinds: of the layers; the second one takes n-grams."""
    text = text_config(dataclasses.replace(SIZES, index_budget=budget), reset_id=60)
    whole = read_config({"model_type": "qwen4_exp", "text_config": text})
    return dataclasses.replace(whole, layer_kinds=kinds)


@functools.cache
def params(seed: int = 1, budget: int = 8) -> ModelParams:
    return jax.device_put(first_params(config(budget), seed))


def learner(seed: int = 1) -> Learner:
    return Learner(
        dataclasses.replace(params(seed), mtp=None),
        jax.device_put(first_table(ngram_hash(config()).rows, config(), seed)),
    )


def stream(tokens: int = 400) -> np.ndarray:
    """A walk that a model can learn: each token is one or two above the last."""
    return (np.cumsum(np.random.default_rng(2).integers(1, 3, tokens)) % 60).astype(np.int32)


def batches(rows: int = 2, length: int = 16) -> Batches:
    return Batches(stream(), ngram_hash(config()), rows, length, seed=5)


def lesson() -> Lesson:
    return Lesson(tokenizer=None, config=config(), train=stream(), held_out=stream(120)[::-1], held_out_bytes=300)  # type: ignore[arg-type]
