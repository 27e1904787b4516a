"""Host side: fits the scales once more when the trellis is fixed. Read next: tiles.py."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float32

_ROUNDS = 2
_DAMPING = 1e-6
_COLUMNS, _ROWS = 1 << 13, 1 << 7
"""At a time, so that what a wide matrix is multiplied by is never as large as itself."""


def refit_scales(
    weight_KN: Float32[np.ndarray, "K N"],
    inner_KN: Float32[np.ndarray, "K N"],
    su_K: Float32[np.ndarray, "K"],
    sv_N: Float32[np.ndarray, "N"],
    hessian_KK: Float32[np.ndarray, "K K"] | None,
    out_scales: bool,
) -> tuple[Float32[np.ndarray, "K"], Float32[np.ndarray, "N"]]:
    """Least squares of tr(E^T hessian E), E = weight - diag(su) inner diag(sv), in sv and su in turn, two rounds.

    sv_j *= q_j . hessian w_j / q_j . hessian q_j, with q and w the columns of the spelled and the wanted matrix; then
    su *= r with ((Q Q^T) o hessian + damping) r = rowsum(Q o (hessian W)).

    Args:
      inner_KN: H W_q H. hessian_KK: damped, in the weights' own basis, None for the identity.
      out_scales: False leaves sv_N as it is.
    Returns: su_K and sv_N.
    """
    weighted_KN = weight_KN if hessian_KK is None else hessian_KK @ weight_KN
    for _ in range(_ROUNDS):
        if out_scales:
            sv_N = sv_N * _column_factors(weight_KN, inner_KN, su_K, sv_N, hessian_KK)
        su_K = su_K * _row_factors(weighted_KN, inner_KN, su_K, sv_N, hessian_KK)
    return su_K, sv_N


def _column_factors(
    weight_KN: np.ndarray, inner_KN: np.ndarray, su_K: np.ndarray, sv_N: np.ndarray, hessian_KK: np.ndarray | None
) -> np.ndarray:
    wanted_N, size_N = np.empty((2, len(sv_N)))
    for some in _parts(len(sv_N), _COLUMNS):
        found = su_K[:, None] * inner_KN[:, some] * sv_N[some]
        weighted = found if hessian_KK is None else hessian_KK @ found
        wanted_N[some] = np.sum(weighted * weight_KN[:, some], axis=0, dtype=np.float64)
        size_N[some] = np.sum(weighted * found, axis=0, dtype=np.float64)
    return np.divide(wanted_N, size_N, out=np.ones_like(size_N), where=size_N > 0).astype(np.float32)


def _row_factors(
    weighted_KN: np.ndarray, inner_KN: np.ndarray, su_K: np.ndarray, sv_N: np.ndarray, hessian_KK: np.ndarray | None
) -> np.ndarray:
    wanted_K, size_K = np.empty((2, len(su_K)))
    for some in _parts(len(su_K), _ROWS):
        found = su_K[some, None] * inner_KN[some] * sv_N
        wanted_K[some] = np.sum(found * weighted_KN[some], axis=1, dtype=np.float64)
        size_K[some] = np.sum(np.square(found), axis=1, dtype=np.float64)
    if hessian_KK is None:
        size_K += _DAMPING * size_K.mean()
        return np.divide(wanted_K, size_K, out=np.ones_like(size_K), where=size_K > 0).astype(np.float32)
    found_KN = su_K[:, None] * inner_KN * sv_N
    sizes_KK = ((found_KN @ found_KN.T) * hessian_KK).astype(np.float64)
    mean = float(np.trace(sizes_KK)) / len(sizes_KK)
    if not mean > 0:
        return np.ones(len(sizes_KK), np.float32)
    sizes_KK[np.diag_indices(len(sizes_KK))] += _DAMPING * mean
    return np.linalg.solve(sizes_KK, wanted_K).astype(np.float32)


def _parts(channels: int, step: int) -> Iterator[slice]:
    """Channels that do not meet, some at a time."""
    for first in range(0, channels, step):
        yield slice(first, first + step)
