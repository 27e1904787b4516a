"""Host side: the 128-point rotation on one axis of a matrix. Read next: regularise.py.

Additions of whole slices, not products with a matrix: thread pools of linear algebra libraries make small products
slower by far where others use the cores.
"""

import numpy as np

from checkpoints.exl3 import BLOCK


def rotate_columns(x: np.ndarray) -> np.ndarray:
    """x @ H over blocks of 128 of the last axis, H[i, j] = (-1)^popcount(i & j) / sqrt(128), its own inverse."""
    turned = _butterflies(np.ascontiguousarray(x.reshape(-1, x.shape[-1]).T))
    return np.ascontiguousarray(turned.T).reshape(x.shape)


def rotate_rows(x_KN: np.ndarray) -> np.ndarray:
    """H @ x over blocks of 128 of the first axis."""
    return _butterflies(np.ascontiguousarray(x_KN))


def _butterflies(x_RN: np.ndarray) -> np.ndarray:
    """H over blocks of 128 of R: (a + b, a - b) at strides 1, 2, 4, ..., 64."""
    stride = 1
    while stride < BLOCK:
        pairs = x_RN.reshape(-1, 2, stride, x_RN.shape[1])
        turned = np.empty_like(pairs)
        np.add(pairs[:, 0], pairs[:, 1], out=turned[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=turned[:, 1])
        x_RN = turned.reshape(x_RN.shape)
        stride *= 2
    return x_RN * x_RN.dtype.type(BLOCK**-0.5)
