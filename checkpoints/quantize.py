"""Host side: writes matrices as EXL3 layers, and rows of an n-gram table as EXL3 rows. The search runs on jax's device.

    arrays = quantize_linear(weight_KN, bits=4)  # trellis, suh, svh and the codebook's marker, as in a file

Importing this needs NumPy alone; jax is imported when something is quantized. Read next: quantiser/__init__.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Float32

from checkpoints.exl3 import BLOCK, CODEBOOKS, MARKERS, TILE, WIDTHS
from checkpoints.quantiser.feedback import Feedback, feedback_of
from checkpoints.quantiser.ldlq import Fed, search_matrices
from checkpoints.quantiser.ngram import quantize_rows
from checkpoints.quantiser.refit import refit_scales
from checkpoints.quantiser.regularise import Regular, regularise
from checkpoints.quantiser.rotation import rotate_columns, rotate_rows
from checkpoints.quantiser.scale import find_scale
from checkpoints.quantiser.tiles import pack_states, to_tiles

__all__ = [
    "Feedback",
    "Group",
    "codebook_scale",
    "prepare_hessian",
    "quantize_groups",
    "quantize_linear",
    "quantize_linears",
    "quantize_rows",
]

OutScales = Literal["always", "never", "auto"]
_LARGEST, _SMALLEST = 2.0**14, 2.0**-10
"""Where the largest input scale may lie; outside, the outputs take half of the way to 1."""


def quantize_linear(
    weight_KN: Float[np.ndarray, "K N"],
    bits: float,
    codebook: str = "mul1",
    hessian: Float[np.ndarray, "K K"] | Feedback | None = None,
    *,
    seed: int = 0,
    out_scales: OutScales = "always",
) -> dict[str, np.ndarray]:
    """Writes y = x @ W as an EXL3 layer: W = diag(suh) H W_q H diag(svh), W_q spelled by a trellis.

    Sizes that are no multiple of 128 are padded with zeros: suh and svh are 0 there. The same arguments give the same
    arrays on the same kind of device.

    Args:
      weight_KN: any float dtype, inputs first (the transpose of the usual [out, in]). bits: a weight, a whole number
        from 1 to 8, or 1.5, 2.5, 3.5 with mul1. codebook: "mul1", "mcg" or "3inst".
      hessian: X^T X / rows of the layer's inputs, or that prepared by `prepare_hessian`: errors are then weighed by
        what the inputs make of them. None, or a Hessian of inputs that were all zero, weighs all errors alike.
      seed: of the random signs; a prepared Hessian brings its own for the inputs. out_scales: "always" gives every
        output its own scale, "never" a sign alone, "auto" a scale unless a few inputs outweigh all others.
    Returns: `trellis` int16 [K'/16, N'/16, 16*bits], `suh` float16 [K'], `svh` float16 [N'], with K' and N' padded, and
      the marker `mul1` or `mcg`, int32 [] (none for 3inst): what pallas_kernels.exl3.from_arrays takes.
    Raises: ValueError, before anything is searched, for a width, codebook or choice that does not exist, a weight or a
      Hessian that is not finite or of another shape; afterwards where float16 cannot hold the scales.
    Source: QTIP, arXiv 2406.11235; the EXL3 format of exllamav3.
    """
    return quantize_linears([weight_KN], bits, codebook, hessian, seed=seed, out_scales=out_scales)[0]


def quantize_linears(
    weights: Sequence[Float[np.ndarray, "K N"]],
    bits: float,
    codebook: str = "mul1",
    hessian: Float[np.ndarray, "K K"] | Feedback | None = None,
    *,
    seed: int = 0,
    out_scales: OutScales = "always",
    scale: float | None = None,
) -> list[dict[str, np.ndarray]]:
    """`quantize_linear` of matrices that share their inputs; together, so that a device with many lanes is kept busy.

    A matrix's arrays do not depend on those beside it, but for the order in which its feedback products are summed.

    Args:
      scale: the codebook's factor, from `codebook_scale`; None searches one for each matrix.
    """
    if not weights:
        raise ValueError("quantize_linears: no weights")
    _check(weights, bits, codebook, out_scales)
    inputs = weights[0].shape[0]
    _check_hessian(hessian, inputs)
    prepared = hessian if isinstance(hessian, Feedback) else prepare_hessian(hessian, inputs, seed)
    group = Group(tuple(weights), prepared, seed)
    return quantize_groups([group], bits, codebook, out_scales=out_scales, scale=scale)[0]


@dataclass(frozen=True)
class Group:
    """Matrices that share their inputs. hessian: of these, prepared, or None. seed: of the random signs."""

    weights: tuple[Float[np.ndarray, "K N"], ...]
    hessian: Feedback | None
    seed: int


def quantize_groups(
    groups: Sequence[Group],
    bits: float,
    codebook: str = "mul1",
    *,
    out_scales: OutScales = "always",
    scale: float | None = None,
) -> list[list[dict[str, np.ndarray]]]:
    """`quantize_linears` of several groups with as many inputs; together, so that small matrices fill a search.

    Raises: ValueError as `quantize_linear`.
    """
    if not groups or not all(group.weights for group in groups):
        raise ValueError("quantize_groups: no groups, or one without weights")
    for group in groups:
        _check([*groups[0].weights, *group.weights], bits, codebook, out_scales)
        _check_hessian(group.hessian, len(group.weights[0]))
    readied = [_ready(group, bits, codebook, out_scales, scale) for group in groups]
    matrices = [
        Fed(
            _side_by_side([layer.target_KN for layer in layers]),
            None if group.hessian is None else group.hessian.lower_KK,
        )
        for group, layers in zip(groups, readied, strict=True)
    ]
    scales = [[(layer.su_K, layer.sv_N) for layer in layers] for layers in readied]
    del readied  # large where a matrix is wide
    found = search_matrices(matrices, bits, codebook)
    del matrices
    out = []
    for group, own, (states, found_KN) in zip(groups, scales, found, strict=True):
        out.append(_finished(group, own, states, found_KN, bits, codebook, out_scales))
    return out


def _ready(group: Group, bits: float, codebook: str, out_scales: str, scale: float | None) -> list[Regular]:
    scaled, fed_back = _scaled(out_scales, group.hessian), group.hessian is not None
    layers = [_regular(_pad(weight), group.hessian, group.seed, scaled) for weight in group.weights]
    return [_at_codebook_scale(layer, bits, codebook, fed_back, scale) for layer in layers]


def _side_by_side(parts: list[np.ndarray]) -> np.ndarray:
    """One wide matrix; the only part itself, for a copy of a head takes gigabytes."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _finished(
    group: Group, scales: list, states: np.ndarray, found_KN: np.ndarray, bits: float, codebook: str, out_scales: str
) -> list[dict[str, np.ndarray]]:
    """The layers of a group: what was searched, with its scales refitted."""
    damped_KK = None if group.hessian is None else group.hessian.damped_KK
    out, last = [], 0
    for weight, (su_K, sv_N) in zip(map(_pad, group.weights), scales, strict=True):
        first, last = last, last + weight.shape[1]
        inner_KN = rotate_rows(rotate_columns(found_KN[:, first:last]))
        su_K, sv_N = refit_scales(weight, inner_KN, su_K, sv_N, damped_KK, _scaled(out_scales, group.hessian))
        out.append(_arrays(states[:, first // TILE : last // TILE], su_K, sv_N, bits, codebook))
    return out


def codebook_scale(
    weight_KN: Float[np.ndarray, "K N"],
    bits: float,
    codebook: str = "mul1",
    hessian: Feedback | None = None,
    *,
    seed: int = 0,
    out_scales: OutScales = "always",
) -> float:
    """The factor that `quantize_linears` would find for a matrix; matrices of one kind differ little in it.

    The search takes several times as long as what it is for, which is worth while where matrices are large.
    """
    _check([weight_KN], bits, codebook, out_scales)
    layer = _regular(_pad(weight_KN), hessian, seed, _scaled(out_scales, hessian))
    return find_scale(to_tiles(layer.target_KN), bits, codebook, hessian is not None)


def prepare_hessian(hessian_II: Float[np.ndarray, "I I"] | None, inputs: int, seed: int = 0) -> Feedback | None:
    """Damps, rotates and factors a Hessian once for all layers that share it.

    Returns: what `quantize_linear` takes as `hessian`; None for None and for inputs that were all zero.
    Raises: ValueError where the Hessian is not [inputs, inputs], not finite or, damped, not positive definite.
    """
    _check_hessian(hessian_II, inputs)
    return None if hessian_II is None else feedback_of(np.asarray(hessian_II), _signs(seed, 0, _padded(inputs)))


def _check(weights: Sequence[np.ndarray], bits: float, codebook: str, out_scales: str) -> None:
    if codebook not in CODEBOOKS:
        raise ValueError(f"quantize_linear: no codebook {codebook!r}, wanted one of {CODEBOOKS}")
    widths = [width for width in WIDTHS.values() if codebook == "mul1" or width % 1 == 0]
    if bits not in widths:
        raise ValueError(f"quantize_linear: {bits} bits with codebook {codebook}, wanted one of {widths}")
    if out_scales not in ("always", "never", "auto"):
        raise ValueError(f"quantize_linear: out_scales {out_scales!r}, wanted 'always', 'never' or 'auto'")
    for weight in weights:
        if weight.ndim != 2 or 0 in weight.shape or weight.shape[0] != weights[0].shape[0]:
            raise ValueError(f"quantize_linear: weight {list(weight.shape)}, wanted [K, N], K the same for all")
        # Not isfinite: a float64 beyond float32 counts too.
        if not np.all(np.abs(weight) <= np.finfo(np.float32).max):
            raise ValueError(f"quantize_linear: weight {list(weight.shape)} holds a value that is not finite")


def _check_hessian(hessian: np.ndarray | Feedback | None, inputs: int) -> None:
    if hessian is None:
        return
    if isinstance(hessian, Feedback):
        if hessian.inputs != inputs:
            raise ValueError(f"quantize_linear: a Hessian of {hessian.inputs} inputs for a weight of {inputs}")
        return
    if hessian.shape != (inputs, inputs):
        raise ValueError(f"quantize_linear: Hessian {list(hessian.shape)}, wanted {[inputs, inputs]}")
    if not np.isfinite(hessian).all():
        raise ValueError("quantize_linear: the Hessian holds a value that is not finite")


def _padded(channels: int) -> int:
    return -(-channels // BLOCK) * BLOCK


def _pad(weight_KN: np.ndarray) -> Float32[np.ndarray, "K N"]:
    K, N = weight_KN.shape
    if K % BLOCK == 0 and N % BLOCK == 0:
        return np.ascontiguousarray(weight_KN, np.float32)
    padded_KN = np.zeros((_padded(K), _padded(N)), np.float32)
    padded_KN[:K, :N] = weight_KN
    return padded_KN


def _signs(seed: int, side: int, channels: int) -> Float32[np.ndarray, "C"]:
    return np.random.default_rng([seed, side]).choice(np.array([-1, 1], np.float32), channels)


def _scaled(out_scales: str, prepared: Feedback | None) -> bool:
    return out_scales == "always" or (out_scales == "auto" and (prepared is None or prepared.even))


def _regular(padded_KN: np.ndarray, prepared: Feedback | None, seed: int, scaled: bool) -> Regular:
    signs_K = _signs(seed, 0, padded_KN.shape[0]) if prepared is None else prepared.signs_K
    return regularise(padded_KN, signs_K, _signs(seed, 1, padded_KN.shape[1]), scaled)


def _at_codebook_scale(layer: Regular, bits: float, codebook: str, fed_back: bool, scale: float | None) -> Regular:
    if scale is None:
        scale = find_scale(to_tiles(layer.target_KN), bits, codebook, fed_back)
    factor = np.float32(scale)
    return Regular(layer.target_KN * factor, layer.su_K / factor, layer.sv_N)


def _arrays(
    states: np.ndarray, su_K: np.ndarray, sv_N: np.ndarray, bits: float, codebook: str
) -> dict[str, np.ndarray]:
    largest = float(np.abs(su_K).max())
    if largest > 0 and not _SMALLEST <= largest <= _LARGEST:
        shared = np.float32(2.0 ** np.round(np.log2(largest) / 2))
        su_K, sv_N = su_K / shared, sv_N * shared
    if max(np.abs(su_K).max(), np.abs(sv_N).max()) > np.finfo(np.float16).max:
        raise ValueError("quantize_linear: weights too large: float16 cannot hold their scales")
    arrays = {"trellis": pack_states(states, bits), "suh": su_K.astype(np.float16), "svh": sv_N.astype(np.float16)}
    if codebook in MARKERS:
        arrays[codebook] = np.array(MARKERS[codebook], np.uint32).view(np.int32)
    return arrays
