"""Host side: the held-out text that every model is judged on. Read next: acceptance.py."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from experiments.train.backoff import Backoff


@dataclass(frozen=True)
class Windows:
    """token_BT: windows of the held-out stream, whose first tokens are given. before_B: the token before each."""

    token_BT: Int[np.ndarray, "B T"]
    before_B: Int[np.ndarray, " B"]


def windows(stream: Int[np.ndarray, " S"], count: int, length: int) -> Windows:
    """Windows spread evenly over a stream. Raises ValueError where it is shorter than one and a token before it."""
    if len(stream) <= length:
        raise ValueError(f"windows: a stream of {len(stream)} tokens, a window takes {length + 1}")
    first = np.linspace(1, len(stream) - length, count).astype(np.int64)
    return Windows(stream[first[:, None] + np.arange(length)].astype(np.int32), stream[first - 1].astype(np.int32))


def backoff_loss(model: Backoff, text: Windows) -> float:
    """Mean negative log-probability of all but the first tokens, in nats: the second ones see the token before too."""
    whole = np.concatenate([text.before_B[:, None], text.token_BT], axis=1)
    return -float(np.mean([model.log_probabilities(token_T) for token_T in whole]))
