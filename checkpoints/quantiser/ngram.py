"""Host side: rows of an n-gram table as a scale and a ring of symbols. Read next: pallas_kernels/exl3/ngram.py."""

import numpy as np
from jaxtyping import Float, Float32, Int, Int16, UInt16

from checkpoints.quantiser.search import search

CODEBOOK = "mul1"
_PEAK, _LEAST = 3.0, 0.55
_MOST = {1: 1.08, 2: 1.0, 3: 0.98, 4: 0.95, 5: 0.95, 6: 0.92, 7: 0.92, 8: 0.92}
"""The most that a row's root mean square becomes in units of the codebook, by width."""


def quantize_rows(
    rows_RD: Float[np.ndarray, "R D"],
    bits: int,
    head_bias_HD: Float[np.ndarray, "H D"] | None = None,
    head_R: Int[np.ndarray, "R"] | None = None,
) -> Int16[np.ndarray, "R W"]:
    """Writes rows of an n-gram table: row[i] = mul1(state i) * scale + bias[head][i], states on a ring of D values.

    A row is sized so that its largest value lands near the edge of the codebook, its ring is searched, and the scale is
    then the least-squares one. A row that is its bias gets scale 0.

    Args:
      rows_RD: any float dtype. bits: 1 to 8, whole. head_bias_HD, head_R: what each head adds to its rows, and the head
        of each row, in [0, H); or neither.
    Returns: int16 [R, 1 + D*bits/16], word 0 the float16 scale.
    Raises: ValueError where D values of that width do not fill 16-bit words, where only one of head_bias_HD and head_R
      is given or their shapes do not fit, and where a row is not finite or too large for a float16 scale.
    """
    from pallas_kernels.exl3.ngram import row_words

    words = row_words(bits, rows_RD.shape[-1])
    rest_RD = _without_bias(rows_RD, head_bias_HD, head_R)
    if not np.isfinite(rest_RD).all():
        raise ValueError("quantize_rows: a row is not finite")
    scale_R = _scales(rest_RD, bits)
    states_RD, values_RD = search(rest_RD / np.where(scale_R > 0, scale_R, np.inf)[:, None], bits, CODEBOOK)
    out = np.empty((len(rest_RD), words), np.int16)
    out[:, 0] = _fitted(rest_RD, values_RD, scale_R).view(np.int16)
    out[:, 1:] = pack_rows(states_RD, bits)
    return out


def pack_rows(states_RD: UInt16[np.ndarray, "R D"], bits: int) -> Int16[np.ndarray, "R W"]:
    """The low `bits` bits of every state, least significant first in 16-bit words."""
    stream = (states_RD[..., None] >> np.arange(bits, dtype=np.uint16) & 1).astype(np.uint8)
    stream = stream.reshape(len(states_RD), states_RD.shape[1] * bits)
    return np.packbits(stream, axis=1, bitorder="little").view("<i2")


def _without_bias(rows_RD: np.ndarray, head_bias_HD: np.ndarray | None, head_R: np.ndarray | None) -> np.ndarray:
    rows_RD = np.asarray(rows_RD, np.float32)
    if rows_RD.ndim != 2:
        raise ValueError(f"quantize_rows: rows {list(rows_RD.shape)}, wanted [R, D]")
    if head_bias_HD is None and head_R is None:
        return rows_RD
    if head_bias_HD is None or head_R is None:
        raise ValueError("quantize_rows: head biases need the head of each row, and heads their biases")
    if head_bias_HD.ndim != 2 or head_bias_HD.shape[1] != rows_RD.shape[1] or head_R.shape != rows_RD.shape[:1]:
        raise ValueError(
            f"quantize_rows: biases {list(head_bias_HD.shape)} and heads {list(head_R.shape)} "
            f"for rows {list(rows_RD.shape)}"
        )
    if head_R.size and not 0 <= head_R.min() <= head_R.max() < len(head_bias_HD):
        raise ValueError(f"quantize_rows: a head outside [0, {len(head_bias_HD)})")
    return rows_RD - np.asarray(head_bias_HD, np.float32)[head_R]


def _scales(rest_RD: Float32[np.ndarray, "R D"], bits: int) -> Float32[np.ndarray, "R"]:
    """Root mean square over the size that the codebook should see; 0 for a row of zeros."""
    size_R = np.sqrt(np.mean(np.square(rest_RD, dtype=np.float64), axis=1))
    peak_R = np.abs(rest_RD).max(axis=1, initial=0).astype(np.float64)
    crest_R = np.divide(peak_R, size_R, out=np.ones_like(size_R), where=size_R > 0)
    scale_R = size_R / np.clip(_PEAK / crest_R, _LEAST, _MOST[bits])
    if scale_R.max(initial=0) > np.finfo(np.float16).max:
        raise ValueError("quantize_rows: a row is too large for a float16 scale")
    return scale_R.astype(np.float32)


def _fitted(rest_RD: np.ndarray, values_RD: np.ndarray, scale_R: np.ndarray) -> np.ndarray:
    """float16 scales of least squared error, near scale_R: 0 where that is 0."""
    wanted_R = np.sum(rest_RD * values_RD, axis=1, dtype=np.float64)
    size_R = np.sum(np.square(values_RD), axis=1, dtype=np.float64)
    fitted_R = np.divide(wanted_R, size_R, out=np.zeros_like(size_R), where=(size_R > 0) & (scale_R > 0))
    return np.minimum(fitted_R, np.finfo(np.float16).max).astype(np.float16)
