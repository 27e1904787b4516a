"""Host side: the EXL3 linear layers of a store, checked against the format before their data is read.

Widths, sizes and codebook come from each layer's own tensors, never from the config, whose `bits` is an average.
Read next: pallas_kernels/exl3/weight.py (what the arrays mean), ngram.py (the other thing called a trellis).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from checkpoints.errors import CheckpointError
from checkpoints.headers import TensorInfo
from checkpoints.store import Store

if TYPE_CHECKING:
    from pallas_kernels.exl3.weight import Exl3Weight

CODEBOOKS = ("3inst", "mcg", "mul1")
MARKERS = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
"""Codebook -> the multiplier that its marker tensor must hold, as an unsigned pattern."""
TILE = 16
BLOCK = 128
"""Channels that one rotation mixes; both sizes of a layer are multiples of it."""
WIDTHS = {int(TILE * bits): bits for bits in (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0)}
"""Last axis of a trellis -> bits a weight."""
SCALE_PAIRS = (("suh", "su"), ("svh", "sv"))
"""Inputs, outputs: the tensor of scales with signs, and what older files have instead, packed signs."""


@dataclass(frozen=True, slots=True)
class LinearInfo:
    """One EXL3 layer, from its headers and its marker.

    prefix: module name without a trailing dot. in_features, out_features: as stored, multiples of 128.
    bits: a weight; whole from 1 to 8, or 1.5, 2.5, 3.5. codebook: one of CODEBOOKS. trellis_shape:
    (in_features / 16, out_features / 16, 16 * bits).
    """

    prefix: str
    in_features: int
    out_features: int
    bits: float
    codebook: str
    has_bias: bool
    trellis_shape: tuple[int, int, int]


def check_quantization(config: dict | None) -> dict | None:
    """Returns the quantization part of a parsed config.json, or None where there is none.

    Raises: CheckpointError for any method but "exl3" and any codebook but the three of the format. Packs for other
      kernels reuse the tensor names; read as EXL3 they would decode to noise without an error.
    """
    config = config or {}
    text = config.get("text_config")
    found = config.get("quantization_config")
    if found is None and isinstance(text, dict):
        found = text.get("quantization_config")
    if found is None:
        return None
    if not isinstance(found, dict):
        raise CheckpointError(f"config.json: quantization_config must be an object, not {type(found).__name__}")
    if found.get("quant_method") != "exl3":
        raise CheckpointError(f"config.json: unknown quant_method {found.get('quant_method')!r}; supported: exl3")
    if found.get("codebook") is not None and found["codebook"] not in CODEBOOKS:
        raise CheckpointError(f"config.json: unknown codebook {found['codebook']!r}; supported: {', '.join(CODEBOOKS)}")
    return found


def is_linear(store: Store, prefix: str) -> bool:
    """Tells whether a module is, or was meant to be, an EXL3 layer: any of its parts makes it one.

    A layer that lost a part is still one, so that reading it names the part. A trellis of two axes with no scales is an
    n-gram table, not a layer.
    """
    if any(f"{prefix}.{part}" in store for pair in SCALE_PAIRS for part in pair):
        return True
    return f"{prefix}.trellis" in store and len(store.info(f"{prefix}.trellis").shape) != 2


def linear_info(store: Store, prefix: str) -> LinearInfo:
    """Reads a layer's headers and marker value, and holds them against the format.

    Args:
      prefix: the module name without a trailing dot, as in `lm_head`.
    Raises: CheckpointError, naming the tensor, where a part is missing, doubled, misshapen or of another dtype; where
      a marker holds another value or both are there; where a width is not of the format, or a half width comes
      without mul1; where the config names a codebook whose marker the layer lacks; where a plain weight or a
      pre-release `scale` is there as well.
    Source: the EXL3 format of exllamav3 (doc/exl3.md).
    """
    quantization = check_quantization(store.config) or {}
    for part, why in (
        ("scale", "a pre-release format that is not EXL3"),
        ("weight", "a plain weight beside a trellis"),
    ):
        if f"{prefix}.{part}" in store:
            raise CheckpointError(f"{store.info(f'{prefix}.{part}').where}: {why}")
    trellis = _part(store, prefix, "trellis")
    codebook = _codebook(store, prefix, quantization.get("codebook"))
    bits = _check_trellis(trellis, codebook)
    tiles_in, tiles_out, words = trellis.shape
    inputs, outputs = tiles_in * TILE, tiles_out * TILE
    for (scale, signs), channels in zip(SCALE_PAIRS, (inputs, outputs), strict=True):
        _check_scales(store, prefix, scale, signs, channels)
    has_bias = f"{prefix}.bias" in store
    if has_bias:
        _expect(store.info(f"{prefix}.bias"), ("F16", "F32"), (outputs,))
    return LinearInfo(prefix, inputs, outputs, bits, codebook, has_bias, (tiles_in, tiles_out, words))


def read_linear_arrays(store: Store, prefix: str) -> dict[str, np.ndarray]:
    """Reads a layer's tensors as they are stored, by their names without the prefix, after `linear_info` passed.

    Returns: `trellis` int16 [K/16, N/16, 16*bits]; `suh` float16 [K] or `su` int16 [K/16]; `svh` or `sv` likewise; the
      marker, if any; `bias` float16 or float32 [N], if any.
    Raises: CheckpointError as `linear_info`, and where a scale or a bias is not finite (in float16, for a bias).
    """
    info = linear_info(store, prefix)
    parts = ["trellis", *(part for pair in SCALE_PAIRS for part in pair if f"{prefix}.{part}" in store)]
    parts += [info.codebook] * (info.codebook in MARKERS) + ["bias"] * info.has_bias
    arrays = {part: store.read(f"{prefix}.{part}") for part in parts}
    for part in arrays.keys() & {"suh", "svh", "bias"}:
        # Not isfinite: a float32 bias is used as float16, so what is too large for that counts too.
        if not np.all(np.abs(arrays[part].astype(np.float32)) <= np.finfo(np.float16).max):
            raise CheckpointError(f"{store.info(f'{prefix}.{part}').where}: holds values that are no finite float16")
    return arrays


def read_linear(store: Store, prefix: str) -> "Exl3Weight":
    """Reads a layer as a `pallas_kernels.exl3.Exl3Weight` of NumPy arrays; raises as `read_linear_arrays`."""
    from pallas_kernels.exl3.weight import from_arrays

    try:
        return from_arrays(read_linear_arrays(store, prefix), prefix)
    except ValueError as error:
        raise CheckpointError(f"{store.path}: {error}") from error


def _part(store: Store, prefix: str, part: str) -> TensorInfo:
    if f"{prefix}.{part}" not in store:
        raise CheckpointError(f"{store.path}: {prefix}.{part}: missing, the EXL3 layer {prefix} needs it")
    return store.info(f"{prefix}.{part}")


def _codebook(store: Store, prefix: str, configured: str | None) -> str:
    """The codebook a layer's marker names; no marker means 3inst, unless the config says that there should be one."""
    found = [marker for marker in MARKERS if f"{prefix}.{marker}" in store]
    if len(found) > 1:
        raise CheckpointError(f"{store.path}: {prefix}: both markers, {' and '.join(found)}: a layer has one codebook")
    if not found:
        if configured in MARKERS:
            raise CheckpointError(
                f"{store.path}: {prefix}.{configured}: missing: config.json names codebook {configured}, and without "
                f"a marker this layer would be read as 3inst"
            )
        return "3inst"
    info = store.info(f"{prefix}.{found[0]}")
    _expect(info, ("I32",), ())
    value = int(store.read(info.name)) & 0xFFFFFFFF
    if value != MARKERS[found[0]]:
        raise CheckpointError(f"{info.where}: 0x{value:08X} is no known multiplier, not 0x{MARKERS[found[0]]:08X}")
    return found[0]


def _check_trellis(info: TensorInfo, codebook: str) -> float:
    if info.dtype != "I16" or len(info.shape) != 3:
        raise CheckpointError(f"{info.where}: I16 [in/16, out/16, 16*bits] was wanted")
    for size, axis in zip(info.shape[:2], ("inputs", "outputs"), strict=True):
        if size == 0 or size * TILE % BLOCK:
            raise CheckpointError(f"{info.where}: {size * TILE} {axis}, not a positive multiple of {BLOCK}")
    bits = WIDTHS.get(info.shape[2])
    if bits is None:
        wanted = ", ".join(map(str, WIDTHS))
        raise CheckpointError(f"{info.where}: last axis {info.shape[2]} is no width of the format; known: {wanted}")
    if bits % 1 and codebook != "mul1":
        raise CheckpointError(f"{info.where}: {bits} bits with codebook {codebook}: half widths exist for mul1 only")
    return bits


def _check_scales(store: Store, prefix: str, scale: str, signs: str, channels: int) -> None:
    if f"{prefix}.{signs}" not in store:
        _expect(_part(store, prefix, scale), ("F16",), (channels,))
        return
    info = store.info(f"{prefix}.{signs}")
    if f"{prefix}.{scale}" in store:
        raise CheckpointError(f"{info.where}: {prefix}.{scale} is there as well; one of them was wanted")
    _expect(info, ("I16",), (channels // 16,))


def _expect(info: TensorInfo, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> None:
    if info.dtype not in dtypes or info.shape != shape:
        raise CheckpointError(f"{info.where}: {' or '.join(dtypes)} {list(shape)} was wanted")
