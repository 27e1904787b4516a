"""Host side: what each token of a sequence looks back to, for `NgramTables.embeddings`."""

import numpy as np
from jaxtyping import Int


def token_history(token_T: Int[np.ndarray, " T"], back: int) -> Int[np.ndarray, "T N"]:
    """The `back` tokens before each token, newest first, -1 before the start. back: ngram_size - 1."""
    padded = np.concatenate([np.full(back, -1, token_T.dtype), token_T])
    place_TN = np.arange(len(token_T))[:, None] + np.arange(back - 1, -1, -1)[None, :]
    return padded[place_TN]
