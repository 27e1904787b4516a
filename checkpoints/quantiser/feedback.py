"""Host side: what the search learns from the inputs that a layer has seen. Read next: ldlq.py."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32

from checkpoints.exl3 import TILE
from checkpoints.quantiser.rotation import rotate_columns, rotate_rows

_DAMPING = 0.025
_MORE_DAMPING, _TRIES = 0.05, 10
_LEAST_MEAN = 1e-20


@dataclass(frozen=True)
class Feedback:
    """A Hessian prepared for layers that share it: K inputs, padded to whole rotations.

    inputs: logical inputs. even: False where a few of them outweigh all others. signs_K: random signs that come before
    the rotation. damped_KK: the damped Hessian in the weights' own basis. lower_KK: strictly block-lower part of the
    unit factor of the rotated Hessian, in blocks of 16.
    """

    inputs: int
    even: bool
    signs_K: Float32[np.ndarray, "K"]
    damped_KK: Float32[np.ndarray, "K K"]
    lower_KK: Float32[np.ndarray, "K K"]


def feedback_of(hessian: Float[np.ndarray, "I I"], signs_K: Float32[np.ndarray, "K"]) -> Feedback | None:
    """Damps, rotates and factors a Hessian X^T X / rows, I <= K; K - I further inputs are always zero.

    Returns: None where the layer has seen no inputs worth the name (a mean square below 1e-20).
    Raises: ValueError where the Hessian has a negative diagonal or is not positive definite, however much it is damped.
    """
    inputs, K = len(hessian), len(signs_K)
    if np.diagonal(hessian).min() < 0:
        raise ValueError("quantize_linear: the Hessian has a negative mean square")
    mean = float(np.trace(hessian, dtype=np.float64)) / inputs
    if mean < _LEAST_MEAN:
        return None
    damped = np.zeros((K, K))
    damped[:inputs, :inputs] = hessian
    damped[np.diag_indices(K)] += _DAMPING * mean
    signs = signs_K.astype(np.float64)
    lower = _strictly_lower(_cholesky(rotate_rows(rotate_columns(damped * signs * signs[:, None]))))
    even = evenly_loud(np.diagonal(hessian))
    return Feedback(inputs, even, signs_K, damped.astype(np.float32), lower.astype(np.float32))


def evenly_loud(power_I: Float[np.ndarray, "I"]) -> bool:
    """Tells whether the loudest 2 % of the inputs, by root mean square, hold less than 15 % of all loudness."""
    loudness = np.sort(np.sqrt(power_I))[::-1]
    top = max(1, len(loudness) // 50)
    return bool(loudness[:top].sum() < 0.15 * loudness.sum())


def _cholesky(hessian_KK: np.ndarray) -> np.ndarray:
    more = _MORE_DAMPING * np.trace(hessian_KK) / len(hessian_KK) * np.eye(len(hessian_KK))
    for attempt in range(_TRIES + 1):
        try:
            return np.linalg.cholesky(hessian_KK + attempt * more)
        except np.linalg.LinAlgError:
            continue
    raise ValueError("quantize_linear: the Hessian is not positive definite, also with its diagonal damped")


def _strictly_lower(factor_KK: np.ndarray) -> np.ndarray:
    """Block columns of 16 times the inverse of their diagonal block, which then goes."""
    lower_KK = np.zeros_like(factor_KK)
    for first in range(0, len(factor_KK), TILE):
        block = slice(first, first + TILE)
        below = slice(first + TILE, None)
        lower_KK[below, block] = factor_KK[below, block] @ np.linalg.inv(factor_KK[block, block])
    return lower_KK
