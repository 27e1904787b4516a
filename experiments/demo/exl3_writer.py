"""Host side: EXL3 layers without a quantiser: random bitstreams, and a greedy encoder where they must mean something.

Any words are a valid trellis: they decode to values of mean 0 and spread 1, which the scales then size. Read next:
tensors.py, and pallas_kernels/exl3/trellis.py for what the bits mean.
"""

import numpy as np
from jaxtyping import Float64

from pallas_kernels.exl3.codebook import codebook_table
from pallas_kernels.exl3.trellis import IN_OUT, PLACE, decode_numpy
from pallas_kernels.exl3.weight import BLOCK, MARKERS, TILE

Linear = dict[str, np.ndarray]
"""Tensors of one layer by their names without the module: trellis, suh, svh, mul1."""
WINDOW = 16


def random_linear(rng: np.random.Generator, inputs: int, outputs: int, bits: float, gain: float) -> Linear:
    """A layer of random weights with standard deviation gain / sqrt(inputs); both sizes are padded to whole blocks."""
    stored_in, stored_out = (-(-size // BLOCK) * BLOCK for size in (inputs, outputs))
    shape = (stored_in // TILE, stored_out // TILE, int(TILE * bits))
    trellis = rng.integers(-(2**15), 2**15, shape, np.int16)
    return _layer(trellis, _scales(rng, stored_in, inputs**-0.5), _scales(rng, stored_out, gain))


def identity_linear(rng: np.random.Generator, size: int, bits: int, gain: float) -> Linear:
    """A layer close to `gain` times the identity, as close as a greedy choice of codes gets."""
    sign_in, sign_out = (rng.choice([-1.0, 1.0], size) for _ in "io")
    target = rotate(rotate(np.diag(sign_in * sign_out)).T).T
    spread = target.std()
    scale = spread / codebook_table("mul1").astype(np.float64).std()
    return _layer(encode_greedily(target / scale, bits), sign_in * scale, sign_out * gain)


def matrix(layer: Linear) -> Float64[np.ndarray, "K N"]:
    """W = diag(suh) H W_q H diag(svh), y = x @ W."""
    inner = decode_numpy(layer["trellis"], "mul1").astype(np.float64)
    return layer["suh"].astype(np.float64)[:, None] * rotate(rotate(inner.T).T) * layer["svh"].astype(np.float64)


def rotate(x: Float64[np.ndarray, "... C"]) -> Float64[np.ndarray, "... C"]:
    """Blocks of 128 channels times the normalised Hadamard matrix."""
    H = np.ones((1, 1))
    while len(H) < BLOCK:
        H = np.block([[H, H], [H, -H]])
    return (x.reshape(*x.shape[:-1], -1, BLOCK) @ H / np.sqrt(BLOCK)).reshape(x.shape)


def encode_greedily(target_KN: Float64[np.ndarray, "K N"], bits: int) -> np.ndarray:
    """Writes a trellis whose values follow `target_KN`, each the nearest of the 2^bits that its forerunners allow.

    The ring has to close: its last symbols are those that its first values were chosen with, so these few are random.
    """
    K, N = target_KN.shape
    split = [(K // TILE, N // TILE, *PLACE)[axis] for axis in IN_OUT]
    tiles = target_KN.reshape(split).transpose(np.argsort(IN_OUT)).reshape(-1, TILE * TILE)
    values = codebook_table("mul1").astype(np.float64)
    fixed = -(-(WINDOW - bits) // bits)
    symbols = np.zeros((len(tiles), tiles.shape[1]), np.int64)
    state = np.zeros(len(tiles), np.int64)
    for position in range(tiles.shape[1]):
        options = (state[:, None] << bits | np.arange(2**bits)) & (2**WINDOW - 1)
        nearest = np.abs(values[options] - tiles[:, position, None]).argmin(1)
        symbols[:, position] = nearest if position < tiles.shape[1] - fixed else 0
        state = (state << bits | symbols[:, position]) & (2**WINDOW - 1)
    return pack_symbols(symbols, bits).reshape(K // TILE, N // TILE, TILE * bits)


def pack_symbols(symbols: np.ndarray, bits: int) -> np.ndarray:
    """Symbols [tiles, 256] -> int16 words [tiles, 16 bits]: most significant bit first in pairs of words."""
    ring = (symbols[..., None] >> np.arange(bits - 1, -1, -1) & 1).astype(np.uint8).reshape(len(symbols), -1)
    return np.packbits(ring, axis=1).view(">u4").astype("<u4").view("<i2")


def _scales(rng: np.random.Generator, channels: int, size: float) -> np.ndarray:
    return rng.choice([-1.0, 1.0], channels) * size * np.exp(rng.normal(0, 0.1, channels))


def _layer(trellis: np.ndarray, suh: np.ndarray, svh: np.ndarray) -> Linear:
    marker = np.array(MARKERS["mul1"], np.uint32).view(np.int32)
    return {"trellis": trellis, "suh": suh.astype(np.float16), "svh": svh.astype(np.float16), "mul1": marker}
