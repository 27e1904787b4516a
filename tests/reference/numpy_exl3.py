"""Host, tests only. EXL3 in NumPy, written from the format's description and sharing no code with the packages.

Holds the codebooks, the bitstreams of tiles and n-gram rows, and whole layers as float64 matrices.
Read next: `numpy_weights.py`.
"""

from collections.abc import Mapping
from functools import cache

import numpy as np

MUL1, MCG = 0x83DCD12D, 0xCBAC1FED
POSITION = np.arange(256)
LANE, PLACE = POSITION >> 3, POSITION & 7
ROW = 2 * (LANE & 3) + (PLACE & 1) + 8 * ((PLACE >> 1) & 1)
COLUMN = (LANE >> 2) + 8 * (PLACE >> 2)
HADAMARD = np.array([[(-1) ** (i & j).bit_count() for j in range(128)] for i in range(128)]) / np.sqrt(128)


@cache
def codebook(name: str) -> np.ndarray:
    """The fp16 value of each of the 65,536 states. One rounding each."""
    state = np.arange(65536, dtype=np.uint64)
    if name == "mul1":
        x = state * MUL1 & 0xFFFFFFFF
        total = np.sum([x >> shift & 0xFF for shift in (0, 8, 16, 24)], axis=0).astype(np.float64)
        return ((1024 + total) * 0.00676727294921875 - 10.3828125).astype(np.float16)
    x = state * MCG & 0xFFFFFFFF if name == "mcg" else (state * 89226354 + 64248484) & 0xFFFFFFFF
    x = ((x & 0x8FFF8FFF) ^ 0x3B603B60).astype(np.uint32)
    halves = x.view(np.float16).reshape(-1, 2).astype(np.float32)
    return (halves[:, 0] + halves[:, 1]).astype(np.float16)


def states(trellis: np.ndarray) -> np.ndarray:
    """The 256 states of each tile: trellis [..., 16 b] int16 -> [..., 256] int64.

    State p is the 16 ring bits that end with bit floor((p + 1) b) - 1, most significant first.
    """
    words = trellis.astype("<i2").view("<u2")
    words = words.reshape(*words.shape[:-1], -1, 2)[..., ::-1].reshape(words.shape)  # high half of each uint32 first
    bits = (words[..., None] >> np.arange(15, -1, -1) & 1).reshape(*words.shape[:-1], -1).astype(np.int64)
    ring = bits.shape[-1]
    end = (POSITION + 1) * ring // 256
    where = (end[:, None] - 16 + np.arange(16)) % ring
    return bits[..., where] @ (1 << np.arange(15, -1, -1))


def inner_matrix(trellis: np.ndarray, book: str) -> np.ndarray:
    """W_q, float16 [K, N], of a trellis [K/16, N/16, 16 b]."""
    values = codebook(book)[states(trellis)]
    tiles = np.empty((*trellis.shape[:2], 16, 16), np.float16)
    tiles[:, :, ROW, COLUMN] = values
    return tiles.transpose(0, 2, 1, 3).reshape(16 * trellis.shape[0], 16 * trellis.shape[1])


def rotate(x: np.ndarray) -> np.ndarray:
    """Blockwise normalised 128-point Hadamard transform along the last axis, float64."""
    return (x.reshape(*x.shape[:-1], -1, 128) @ HADAMARD).reshape(x.shape)


def scales(tensors: Mapping[str, np.ndarray], prefix: str, side: str) -> np.ndarray:
    """`suh` or `svh` as float64; older files hold packed signs in `su` or `sv`, a set bit being minus."""
    if f"{prefix}.{side}h" in tensors:
        return np.asarray(tensors[f"{prefix}.{side}h"], np.float64)
    words = np.asarray(tensors[f"{prefix}.{side}"]).view(np.uint16)
    return 1.0 - 2.0 * (words[:, None] >> np.arange(16) & 1).reshape(-1)


def layer_matrix(tensors: Mapping[str, np.ndarray], prefix: str) -> np.ndarray:
    """W = diag(suh) H W_q H diag(svh), float64 [K, N] as stored: y = x @ W."""
    book = next((name for name in ("mul1", "mcg") if f"{prefix}.{name}" in tensors), "3inst")
    inner = inner_matrix(np.asarray(tensors[f"{prefix}.trellis"]), book).astype(np.float64)
    turned = rotate(rotate(inner.T).T)
    return scales(tensors, prefix, "su")[:, None] * turned * scales(tensors, prefix, "sv")


def ngram_states(words: np.ndarray, row_dim: int) -> np.ndarray:
    """States of n-gram rows: words [..., 1 + row_dim b / 16] int16, the first being the scale -> [..., row_dim]."""
    stream = words[..., 1:].astype("<i2").view("<u2")
    bits = (stream[..., None] >> np.arange(16) & 1).reshape(*stream.shape[:-1], -1).astype(np.int64)
    width = bits.shape[-1] // row_dim
    m = np.arange(16)
    where = ((np.arange(row_dim)[:, None] - m // width) % row_dim) * width + m % width
    return bits[..., where] @ (1 << m)


def ngram_rows(words: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Decoded rows: mul1(state) * scale + bias in float32, rounded to fp16. bias [..., row_dim] of each row's head."""
    scale = np.ascontiguousarray(words[..., :1]).view(np.float16).astype(np.float32)
    value = codebook("mul1")[ngram_states(words, bias.shape[-1])].astype(np.float32)
    return (value * scale + bias.astype(np.float32)).astype(np.float16)
