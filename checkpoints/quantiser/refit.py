"""Host side: fits the scales once more when the trellis is fixed. Read next: tiles.py."""

import numpy as np
from jaxtyping import Float32

_ROUNDS = 2
_DAMPING = 1e-6


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
            sv_N = sv_N * _column_factors(su_K[:, None] * inner_KN * sv_N, weight_KN, hessian_KK)
        su_K = su_K * _row_factors(su_K[:, None] * inner_KN * sv_N, weighted_KN, hessian_KK)
    return su_K, sv_N


def _column_factors(found_KN: np.ndarray, weight_KN: np.ndarray, hessian_KK: np.ndarray | None) -> np.ndarray:
    weighted_KN = found_KN if hessian_KK is None else hessian_KK @ found_KN
    wanted_N = np.sum(weighted_KN * weight_KN, axis=0, dtype=np.float64)
    size_N = np.sum(weighted_KN * found_KN, axis=0, dtype=np.float64)
    return np.divide(wanted_N, size_N, out=np.ones_like(size_N), where=size_N > 0).astype(np.float32)


def _row_factors(found_KN: np.ndarray, weighted_KN: np.ndarray, hessian_KK: np.ndarray | None) -> np.ndarray:
    wanted_K = np.sum(found_KN * weighted_KN, axis=1, dtype=np.float64)
    if hessian_KK is None:
        size_K = np.sum(np.square(found_KN), axis=1, dtype=np.float64)
        size_K += _DAMPING * size_K.mean()
        return np.divide(wanted_K, size_K, out=np.ones_like(size_K), where=size_K > 0).astype(np.float32)
    sizes_KK = ((found_KN @ found_KN.T) * hessian_KK).astype(np.float64)
    mean = float(np.trace(sizes_KK)) / len(sizes_KK)
    if not mean > 0:
        return np.ones(len(sizes_KK), np.float32)
    sizes_KK[np.diag_indices(len(sizes_KK))] += _DAMPING * mean
    return np.linalg.solve(sizes_KK, wanted_K).astype(np.float32)
