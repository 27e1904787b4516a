"""Host side: the 128-point rotation on one axis of a matrix. Read next: regularise.py."""

from functools import lru_cache

import numpy as np

from checkpoints.exl3 import BLOCK


def rotate_columns(x: np.ndarray) -> np.ndarray:
    """x @ H over blocks of 128 of the last axis, H[i, j] = (-1)^popcount(i & j) / sqrt(128), its own inverse."""
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    return (blocks @ _hadamard(x.dtype)).reshape(x.shape)


def rotate_rows(x_KN: np.ndarray) -> np.ndarray:
    """H @ x over blocks of 128 of the first axis."""
    K, N = x_KN.shape
    return (_hadamard(x_KN.dtype) @ x_KN.reshape(-1, BLOCK, N)).reshape(K, N)


@lru_cache(maxsize=4)
def _hadamard(dtype: np.dtype) -> np.ndarray:
    H = np.ones((1, 1))
    while len(H) < BLOCK:
        H = np.block([[H, H], [H, -H]])
    return (H / np.sqrt(BLOCK)).astype(dtype)
