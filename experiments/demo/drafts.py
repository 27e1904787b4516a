"""Host side: how often the draft head first guesses the token that a greedy reply holds. Read next: ../make_demo.py."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from fnx_jax.model import Model

PROMPTS, PROMPT_TOKENS, REPLY_TOKENS = 20, 30, 60


@dataclass(frozen=True)
class FirstDrafts:
    """accepted of drafted: reply tokens behind the first of each reply, guessed from what comes before them."""

    prompts: int
    drafted: int
    accepted: int


def first_drafts(model: Model, tokenizer: Tokenizer, texts: Sequence[str]) -> FirstDrafts:
    """Continues the beginnings of texts, spread evenly over `texts`, and drafts every token of the replies.

    Raises: ValueError where no text is long enough, or the model has no draft head.
    """
    encoded = (code.ids for code in tokenizer.encode_batch(list(texts), add_special_tokens=False))
    long = [ids[:PROMPT_TOKENS] for ids in encoded if len(ids) >= PROMPT_TOKENS]
    if not long:
        raise ValueError(f"first_drafts: no text of {PROMPT_TOKENS} tokens")
    starts = [long[i] for i in np.unique(np.linspace(0, len(long) - 1, PROMPTS).astype(int))]
    guess, drafted, accepted = jax.jit(model.functions.mtp_forward), 0, 0
    streams = jax.jit(model.functions.streams)
    for prompt in starts:
        ids = prompt + model.generate(prompt, REPLY_TOKENS, draft=False)
        whole = np.zeros(PROMPT_TOKENS + REPLY_TOKENS, np.int32)  # of one length, so that one program does
        whole[: len(ids)] = ids
        last = streams(model.params, whole, model.ngram_embeddings(whole.tolist()))
        logits = guess(model.params, last[:-1], jnp.asarray(whole[1:]))
        guesses = np.asarray(logits).argmax(axis=1)[PROMPT_TOKENS - 1 : len(ids) - 2]
        drafted += len(guesses)
        accepted += int((guesses == ids[PROMPT_TOKENS + 1 :]).sum())
    return FirstDrafts(len(starts), drafted, accepted)
