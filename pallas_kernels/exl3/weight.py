"""Traced types and their host constructor: one linear layer of an EXL3 file, as stored and as decoded at load.

`Exl3Weight` keeps the file's bits; `DecodedWeight` keeps the matrix that those bits spell, for devices that multiply
faster than they decode. Both stand for W = diag(suh) H W_q H diag(svh). Read next: trellis.py (bits to W_q).
"""

from collections.abc import Mapping
from typing import Any

import flax.struct
import numpy as np

BLOCK = 128
"""Channels that one rotation mixes; every stored axis is a multiple of it."""
TILE = 16
"""Side of a trellis tile."""
MARKERS = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
HALF_WIDTHS = (1.5, 2.5, 3.5)
WIDTHS = (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8)

Leaf = Any
"""A jax array, a NumPy array on the host, or a spec or sharding in a tree that mirrors the weights."""


@flax.struct.dataclass
class Exl3Weight:
    """A quantized layer. Any leaf may carry the same leading axes (stacked experts); operations take one layer.

    words: the tiles' bitstreams, pairs of the file's int16 words, first word low.
    suh, svh: scales with signs of the input and the output channels; svh is 0 for a dead output.
    bias: added to the output, or None.
    codebook: "3inst", "mcg" or "mul1".
    """

    words: Leaf  # [K/16, N/16, 8*bits] uint32
    suh: Leaf  # [K] float16
    svh: Leaf  # [N] float16
    bias: Leaf = None  # [N] float16, or None
    codebook: str = flax.struct.field(pytree_node=False, kw_only=True)

    @property
    def in_features(self) -> int:
        """K, the inputs as stored (a multiple of 128)."""
        return self.words.shape[-3] * TILE

    @property
    def out_features(self) -> int:
        """N, the outputs as stored (a multiple of 128)."""
        return self.words.shape[-2] * TILE

    @property
    def bits(self) -> float:
        """Bits a weight: a whole number from 1 to 8, or 1.5, 2.5, 3.5."""
        return self.words.shape[-1] / 8


@flax.struct.dataclass
class DecodedWeight:
    """The same layer with W_q spelled out, outputs first.

    wq: W_q transposed; float32 asks for exact mode, where nothing is rounded to float16 (its values are the same).
    suh, svh, bias: as in Exl3Weight.
    """

    wq: Leaf  # [N, K] float16 or float32
    suh: Leaf  # [K] float16
    svh: Leaf  # [N] float16
    bias: Leaf = None  # [N] float16, or None

    @property
    def in_features(self) -> int:
        """K, the inputs as stored."""
        return self.wq.shape[-1]

    @property
    def out_features(self) -> int:
        """N, the outputs as stored."""
        return self.wq.shape[-2]


def unpack_signs(packed: np.ndarray) -> np.ndarray:
    """Packed signs, int16 [C/16] -> float16 [C]: bit i (0 the least) of word w is channel 16w + i, set is -1."""
    bits = np.unpackbits(np.ascontiguousarray(packed).astype("<i2").view(np.uint8), bitorder="little")
    return np.where(bits == 1, np.float16(-1), np.float16(1))


def words_from_trellis(trellis: np.ndarray) -> np.ndarray:
    """int16 [..., 16*bits] -> uint32 [..., 8*bits], each pair with its first word low. A view where memory allows."""
    return np.ascontiguousarray(trellis, dtype="<i2").view("<u4")


def from_arrays(arrays: Mapping[str, np.ndarray], name: str = "weight") -> Exl3Weight:
    """Builds a layer from the tensors of a file, on the host.

    Args:
      arrays: tensor name without prefix -> array: `trellis` int16 [K/16, N/16, 16*bits]; `suh` float16 [K] or `su`
        int16 [K/16] packed signs; `svh` or `sv` likewise; at most one marker of `mcg`, `mul1` (int32, one value);
        optional `bias` [N], float16 or float32. name: the layer, for errors.
    Returns: an Exl3Weight of NumPy arrays, which may share memory with `arrays`.
    Raises: ValueError where a tensor is missing, misshapen, of another dtype or not finite, or a marker is
      unknown or doubled.
    Source: the EXL3 format of exllamav3 (doc/exl3.md).
    """
    codebook = _codebook(arrays, name)
    trellis = _trellis(arrays, codebook, name)
    inputs, outputs = trellis.shape[0] * TILE, trellis.shape[1] * TILE
    return Exl3Weight(
        words=words_from_trellis(trellis),
        suh=_scales(arrays, "suh", "su", inputs, name),
        svh=_scales(arrays, "svh", "sv", outputs, name),
        bias=_bias(arrays, outputs, name),
        codebook=codebook,
    )


def _codebook(arrays: Mapping[str, np.ndarray], name: str) -> str:
    found = [marker for marker in MARKERS if marker in arrays]
    if len(found) > 1:
        raise ValueError(f"{name}: both markers, mcg and mul1; a layer has one codebook")
    for marker in found:
        value = np.asarray(arrays[marker])
        if value.size != 1 or value.dtype not in (np.int32, np.uint32):
            raise ValueError(f"{name}.{marker}: {value.dtype} {list(value.shape)}, wanted one int32")
        if int(value.reshape(())) & 0xFFFFFFFF != MARKERS[marker]:
            raise ValueError(
                f"{name}.{marker}: 0x{int(value.reshape(())) & 0xFFFFFFFF:08X} is no known multiplier, "
                f"wanted 0x{MARKERS[marker]:08X}"
            )
    return found[0] if found else "3inst"


def _trellis(arrays: Mapping[str, np.ndarray], codebook: str, name: str) -> np.ndarray:
    if "trellis" not in arrays:
        raise ValueError(f"{name}.trellis: missing")
    trellis = np.asarray(arrays["trellis"])
    if trellis.dtype != np.int16 or trellis.ndim != 3:
        raise ValueError(f"{name}.trellis: {trellis.dtype} {list(trellis.shape)}, wanted int16 [K/16, N/16, 16*bits]")
    bits = trellis.shape[2] / 16
    if bits not in WIDTHS:
        raise ValueError(f"{name}.trellis: {bits} bits a weight (last axis {trellis.shape[2]}), wanted one of {WIDTHS}")
    if bits in HALF_WIDTHS and codebook != "mul1":
        raise ValueError(f"{name}.trellis: {bits} bits with codebook {codebook}; half widths exist with mul1 only")
    for axis, size in zip(("inputs", "outputs"), trellis.shape, strict=False):
        if size == 0 or size * TILE % BLOCK:
            raise ValueError(f"{name}.trellis: {size * TILE} {axis}, wanted a positive multiple of {BLOCK}")
    return trellis


def _scales(arrays: Mapping[str, np.ndarray], scale: str, sign: str, channels: int, name: str) -> np.ndarray:
    if scale in arrays and sign in arrays:
        raise ValueError(f"{name}: both {scale} and {sign}; one of them was wanted")
    if scale in arrays:
        scales, wanted, dtype = np.asarray(arrays[scale]), (channels,), np.float16
    elif sign in arrays:
        scales, wanted, dtype = np.asarray(arrays[sign]), (channels // 16,), np.int16
        scale = sign
    else:
        raise ValueError(f"{name}: neither {scale} nor {sign}")
    if scales.shape != wanted or scales.dtype != dtype:
        raise ValueError(
            f"{name}.{scale}: {scales.dtype} {list(scales.shape)}, wanted {np.dtype(dtype).name} {list(wanted)}"
        )
    if scale != sign and not np.isfinite(scales).all():
        raise ValueError(f"{name}.{scale}: holds a value that is not finite")
    return unpack_signs(scales) if scale == sign else scales


def _bias(arrays: Mapping[str, np.ndarray], outputs: int, name: str) -> np.ndarray | None:
    if "bias" not in arrays:
        return None
    bias = np.asarray(arrays["bias"])
    if bias.shape != (outputs,) or bias.dtype not in (np.float16, np.float32):
        raise ValueError(f"{name}.bias: {bias.dtype} {list(bias.shape)}, wanted float16 [{outputs}]")
    if not np.isfinite(bias).all() or np.abs(bias).max() > np.finfo(np.float16).max:
        raise ValueError(f"{name}.bias: holds a value that float16 cannot")
    return bias.astype(np.float16)
