"""Host side: how well a checkpoint predicts held-out text, by the programs that serve. Read next: acceptance.py."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from experiments.train.backoff import Backoff
from fnx_jax.model import Model


@dataclass(frozen=True)
class Windows:
    """Windows [B, T] of the held-out stream; in each, tokens from the third on are judged: what a trigram needs."""

    token_BT: Int[np.ndarray, "B T"]

    @property
    def judged(self) -> int:
        """Tokens that count."""
        return self.token_BT[:, 2:].size


def windows(stream: Int[np.ndarray, " S"], count: int, length: int) -> Windows:
    """Windows spread evenly over a stream. Raises ValueError where it is shorter than one."""
    if len(stream) < length:
        raise ValueError(f"windows: a stream of {len(stream)} tokens, a window takes {length}")
    first = np.linspace(0, len(stream) - length, count).astype(np.int64)
    return Windows(stream[first[:, None] + np.arange(length)].astype(np.int32))


def loss(model: Model, text: Windows) -> float:
    """Mean negative log-probability, in nats a token."""
    return -float(np.mean(model.score(text.token_BT)[:, 2:]))


def backoff_loss(model: Backoff, text: Windows) -> float:
    """The same of the model to beat."""
    return -float(np.mean([model.log_probabilities(token_T) for token_T in text.token_BT]))


def choices(model: Model, text: Windows) -> Float[np.ndarray, "B T"]:
    """The likeliest token after each of the windows' tokens."""
    return np.stack([model.logits(token_T).argmax(axis=-1) for token_T in text.token_BT])


def agreement(ours_BT: np.ndarray, theirs_BT: np.ndarray) -> float:
    """The share of rows that choose the same token."""
    return float(np.mean(ours_BT == theirs_BT))
