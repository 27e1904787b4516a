"""Host side: turns weights into something that one Gaussian codebook fits everywhere. Read next: scale.py."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32

from checkpoints.exl3 import BLOCK
from checkpoints.quantiser.rotation import rotate_columns, rotate_rows

_CODEBOOK_STD = 1.24371088
"""Of codebook 3inst; with the others the scale search makes up for it."""
_DEAD, _OF_DEAD, _TINY = 1e-30, 0.1, 1e-10


@dataclass(frozen=True)
class Regular:
    """W = diag(su) H target H diag(sv), but for columns where sv is 0.

    target_KN: what the trellis is to spell. su_K: scales with signs of the inputs. sv_N: of the outputs, 0 where a
    column holds nothing.
    """

    target_KN: Float32[np.ndarray, "K N"]
    su_K: Float32[np.ndarray, "K"]
    sv_N: Float32[np.ndarray, "N"]


def regularise(
    weight_KN: Float32[np.ndarray, "K N"],
    signs_K: Float32[np.ndarray, "K"],
    signs_N: Float32[np.ndarray, "N"],
    out_scales: bool,
) -> Regular:
    """Divides out the columns' sizes (where `out_scales`), rotates, divides out the rows' sizes, rotates."""
    size_N = _rms(weight_KN, axis=0)
    dead_N = size_N / max(float(size_N.mean()), _DEAD) < _DEAD
    sv_N = signs_N
    if out_scales:
        relative_N = np.where(dead_N, np.float32(_OF_DEAD), size_N / np.float32(max(float(size_N.mean()), _DEAD)))
        sv_N = signs_N * relative_N + np.float32(_TINY)
    target = rotate_columns(weight_KN / sv_N)
    size_K = _rms(target, axis=1)
    size_K[size_K < _DEAD] = _OF_DEAD
    su_K = signs_K * size_K / np.float32(-_CODEBOOK_STD) + np.float32(_TINY)
    target = rotate_rows(target / su_K[:, None])
    return Regular(target, su_K, np.where(dead_N, np.float32(0), sv_N))


def _rms(x: Float32[np.ndarray, "K N"], axis: int) -> Float32[np.ndarray, "C"]:
    """Root mean square along an axis, some of the other one's channels at a time: squares are float64."""
    out = np.empty(x.shape[1 - axis], np.float32)
    for first in range(0, len(out), BLOCK):
        some = slice(first, first + BLOCK)
        part = x[:, some] if axis == 0 else x[some]
        out[some] = np.sqrt(np.mean(np.square(part, dtype=np.float64), axis=axis))
    return out
