"""Host side: how many drafts of a chain the main model would accept, on its own continuations of held-out text.

A draft counts as accepted where it and all before it in its chain are what the model itself went on with; then the
chain's tokens are those of the text, so one pass over the text tells for every place. Read next: figures.py.
"""

from collections.abc import Sequence
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from experiments.train.batches import NgramHash
from experiments.train.drafts import draft_hidden
from experiments.train.export import learner
from experiments.train.losses import Batch, Learner, embeddings
from experiments.train.network import EVERY_PICK, last_streams
from experiments.train.run import Trained
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import ModelParams
from fnx_jax.families.flash_next.sequence.dense import dot
from fnx_jax.model import Model
from pallas_kernels.keyed_noise import gumbel_noise, seed_words


def continuations(
    model: Model, prompts_BP: Int[np.ndarray, "B P"], count: int, temperature: float
) -> Int[np.ndarray, "B T"]:
    """Prompts and what the model goes on with, -1 from where a reply ended early. Prompt b is drawn with seed b."""
    rows = []
    for seed, prompt in enumerate(prompts_BP):
        reply = model.generate(prompt.tolist(), max_tokens=count, temperature=temperature, seed=seed, draft=False)
        rows.append([*prompt.tolist(), *reply, *[-1] * (count - len(reply))])
    return np.array(rows, np.int32)


def accepted(
    trained: Trained,
    config: FlashNextConfig,
    hash_: NgramHash,
    token_BT: Int[np.ndarray, "B T"],
    prompt: int,
    depths: int,
    temperature: float,
) -> Sequence[float]:
    """The share of places where a draft of each depth is accepted, given that those before it were.

    Args: token_BT: as `continuations` gives them, -1 where a reply had ended. prompt: tokens of each that were given.
    Returns: one share a depth; NaN where no chain got as far.
    """
    B, T = token_BT.shape
    real_BT = token_BT >= 0
    clean = np.where(real_BT, token_BT, hash_.eos).astype(np.int32)
    window = np.concatenate([np.full((B, len(hash_.multipliers) - 1), hash_.eos, np.int32), clean], axis=1)
    batch = Batch(token=clean, ngram=hash_.row_ids(window))
    logits = draft_logits(learner(trained), trained.params, batch, config, depths)
    agree_dBT = np.asarray(_agree(logits, clean, temperature))
    whole_BT = np.ones((B, T), bool)
    whole_BT[:, : max(prompt - 2, 0)] = False
    shares = []
    for depth, agree_BT in enumerate(agree_dBT, 1):
        ahead = np.zeros((B, T), bool)
        ahead[:, : T - depth - 1] = real_BT[:, depth + 1 :]
        tried = whole_BT & ahead
        whole_BT = tried & agree_BT
        shares.append(float(whole_BT.sum() / tried.sum()) if tried.any() else float("nan"))
    return shares


@partial(jax.jit, static_argnames=("config", "depths"))
def draft_logits(
    main: Learner, params: ModelParams, batch: Batch, config: FlashNextConfig, depths: int
) -> Float[Array, "d R V"]:
    """What the drafts are drawn from: row i at depth d predicts token i + d + 1."""
    streams, _ = last_streams(params, config, batch.token, embeddings(main, batch), EVERY_PICK)
    hidden, _ = draft_hidden(params, config, streams, batch.token, depths, EVERY_PICK)
    return jnp.stack([dot(x_RD, cast(Array, params.head), x_RD.dtype) for x_RD in hidden])


@partial(jax.jit, static_argnames="temperature")
def _agree(
    logits_dRV: Float[Array, "d R V"], token_BT: Int[ArrayLike, "B T"], temperature: float
) -> Bool[Array, "d B T"]:
    """Whether the draft of row i at depth d is token i + d + 1."""
    token_BT, found = jnp.asarray(token_BT), []
    B, T = token_BT.shape
    for depth, logits_RV in enumerate(logits_dRV, 1):
        if temperature > 0:
            logits_RV = logits_RV / temperature + _noise(B, T, depth + 1, logits_RV.shape[-1])
        drawn_BT = jnp.argmax(logits_RV, axis=-1).reshape(B, T)
        found.append(drawn_BT == jnp.roll(token_BT, -depth - 1, axis=1))
    return jnp.stack(found)


def _noise(B: int, T: int, ahead: int, vocabulary: int) -> Array:
    """The noise that draws the token `ahead` places after each row, of sequences with the seeds 0 .. B - 1."""
    seed_R2 = jnp.repeat(jnp.asarray(np.stack([seed_words(seed) for seed in range(B)])), T, axis=0)
    position_R = jnp.tile(jnp.arange(T, dtype=jnp.int32) + jnp.int32(ahead), B)
    return gumbel_noise(seed_R2, jnp.zeros_like(position_R), position_R, jnp.arange(vocabulary, dtype=jnp.int32)[None])
