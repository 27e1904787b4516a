"""Host side: texts as one stream of tokens, and the batches of it that each step sees. Read next: losses.py."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from tokenizers import Tokenizer

from checkpoints.ngram_hash import derive_hash, row_ids
from experiments.train.losses import Batch
from fnx_jax.families.flash_next.config import FlashNextConfig


def stream(tokenizer: Tokenizer, texts: Sequence[str], end: int) -> Int[np.ndarray, " S"]:
    """All texts in order, `end` before the first and after each. int32."""
    encoded = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    parts = [np.array([end], np.int32)]
    for text in encoded:
        parts += [np.array(text.ids, np.int32), parts[0]]
    return np.concatenate(parts)


@dataclass(frozen=True)
class NgramHash:
    """Which rows of the n-gram table tokens read; see checkpoints.ngram_hash."""

    multipliers: np.ndarray
    sizes: np.ndarray
    offsets: np.ndarray
    eos: int

    @property
    def rows(self) -> int:
        """Rows of the table, a multiple of 128."""
        return -(-int(self.sizes.sum()) // 128) * 128

    def row_ids(self, window_BW: Int[np.ndarray, "B W"]) -> Int[np.ndarray, "B T H"]:
        """Of the tokens of each window but the first ones, which are history. int32. T = W - len(multipliers) + 1."""
        order = len(self.multipliers)
        T = window_BW.shape[1] - order + 1
        last = [window_BW[:, order - 1 - back :][:, :T] for back in range(order)]
        tokens = np.stack(last, axis=-1).reshape(-1, order)
        ids = row_ids(tokens, self.eos, self.multipliers, self.sizes, self.offsets)
        return ids.reshape(len(window_BW), T, -1).astype(np.int32)


def ngram_hash(config: FlashNextConfig) -> NgramHash:
    """The hash of a config's n-gram layer."""
    made = derive_hash(
        config.vocabulary, config.ngram_seed, 0, config.ngram_size, config.ngram_heads_per_order, config.ngram_base
    )
    return NgramHash(*made, eos=config.eos_token_ids[0])


@dataclass(frozen=True)
class Batches:
    """Windows of a stream, each once an epoch in an order of its own; a step's batch depends on seed and step alone.

    rows: windows a batch. length: tokens that a window predicts from; windows start anew at a random place each epoch.
    """

    stream: Int[np.ndarray, " S"]
    hash: NgramHash
    rows: int
    length: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return (len(self.stream) - 2 * self.length - self._history) // self.length // self.rows

    @property
    def _history(self) -> int:
        return len(self.hash.multipliers) - 1

    def batch(self, step: int) -> Batch:
        """The batch of one step, from 0."""
        epoch, place = divmod(step, self.steps_per_epoch)
        rng = np.random.default_rng([self.seed, epoch])
        shift = int(rng.integers(self.length))
        order = rng.permutation(self.steps_per_epoch * self.rows)
        first = order[place * self.rows : (place + 1) * self.rows] * self.length + shift + self._history
        return self.at(first)

    def at(self, first_B: Int[np.ndarray, " B"]) -> Batch:
        """Windows by the place of their first token in the stream; what lies before the stream counts as its end."""
        place = first_B[:, None] + np.arange(-self._history, self.length + 1)[None, :]
        window = np.where(place < 0, self.hash.eos, self.stream[np.maximum(place, 0)])
        return Batch(token=window[:, self._history :], ngram=self.hash.row_ids(window[:, :-1]))
