"""Host side: the model to beat: interpolated Kneser-Ney over the last two tokens, one discount an order.

    p3(w | u v) = max(c(u v w) - d3, 0) / c(u v) + d3 * n(u v) / c(u v) * p2(w | v),   n: distinct tokens seen after u v
    p2(w | v)   = the same with the numbers of distinct tokens before (v w) in place of counts;  p1 likewise, then 1 / V

Source: Chen and Goodman, An Empirical Study of Smoothing Techniques for Language Modeling, 1999. Read next: figures.py.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int


@dataclass(frozen=True)
class Counts:
    """One order: sorted keys of n-grams with their counts, and by sorted context its total and its distinct tokens."""

    key: np.ndarray
    count: np.ndarray
    context: np.ndarray
    total: np.ndarray
    distinct: np.ndarray
    discount: float


@dataclass(frozen=True)
class Backoff:
    """Trained on one stream of tokens; `vocabulary` is what the lowest order is uniform over."""

    orders: tuple[Counts, ...]
    vocabulary: int

    def log_probabilities(self, token_S: Int[np.ndarray, " S"]) -> Float64[np.ndarray, " n"]:
        """Of every token from the third on, given the two before it."""
        words = token_S.astype(np.int64)
        probability = np.full(len(words) - 2, 1 / self.vocabulary)
        for order, counts in enumerate(self.orders, 1):
            context = np.zeros(len(words) - 2, np.int64)
            for back in range(order - 1, 0, -1):
                context = context * self.vocabulary + words[2 - back : len(words) - back]
            found = _look_up(counts.key, context * self.vocabulary + words[2:], counts.count)
            total = _look_up(counts.context, context, counts.total)
            distinct = _look_up(counts.context, context, counts.distinct)
            seen = np.maximum(total, 1)
            mixed = (np.maximum(found - counts.discount, 0) + counts.discount * distinct * probability) / seen
            probability = np.where(total > 0, mixed, probability)
        return np.log(probability)


def backoff(token_S: Int[np.ndarray, " S"], vocabulary: int) -> Backoff:
    """Counts a stream. Raises ValueError where it is shorter than a trigram or vocabulary**3 exceeds 63 bits."""
    if len(token_S) < 3 or vocabulary**3 >= 1 << 63:
        raise ValueError(f"backoff: {len(token_S)} tokens of a vocabulary of {vocabulary}")
    words = token_S.astype(np.int64)
    trigram = (words[:-2] * vocabulary + words[1:-1]) * vocabulary + words[2:]
    key, count = np.unique(trigram, return_counts=True)
    orders = [_order(key, count, vocabulary)]
    for _ in range(2):
        # A lower order counts in how many contexts an n-gram has been seen.
        size = vocabulary ** (3 - len(orders))
        key, count = np.unique(key % size, return_counts=True)
        orders.insert(0, _order(key, count, vocabulary))
    return Backoff(tuple(orders), vocabulary)


def _order(key: np.ndarray, count: np.ndarray, vocabulary: int) -> Counts:
    context, first = np.unique(key // vocabulary, return_index=True)
    once, twice = np.sum(count == 1), np.sum(count == 2)
    discount = float(once / max(once + 2 * twice, 1))
    distinct = np.diff(np.append(first, len(key)))
    return Counts(key, count, context, np.add.reduceat(count, first), distinct, discount)


def _look_up(keys: np.ndarray, wanted: np.ndarray, values: np.ndarray) -> np.ndarray:
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
