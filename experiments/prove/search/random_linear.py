"""Host side: EXL3 layers without a quantiser: random bitstreams under random scales. Read next: checkpoint.py."""

import numpy as np

from pallas_kernels.exl3.weight import BLOCK, MARKERS, TILE

Linear = dict[str, np.ndarray]
"""Tensors of one layer by their names without the module: trellis, suh, svh, mul1."""


def random_linear(rng: np.random.Generator, inputs: int, outputs: int, bits: float, gain: float) -> Linear:
    """A layer of random weights with standard deviation gain / sqrt(inputs); both sizes are padded to whole blocks.

    Any words are a valid trellis: they decode to values of mean 0 and spread 1, which the scales then size.
    """
    stored_in, stored_out = (-(-size // BLOCK) * BLOCK for size in (inputs, outputs))
    shape = (stored_in // TILE, stored_out // TILE, int(TILE * bits))
    return {
        "trellis": rng.integers(-(2**15), 2**15, shape, np.int16),
        "suh": _scales(rng, stored_in, inputs**-0.5),
        "svh": _scales(rng, stored_out, gain),
        "mul1": np.array(MARKERS["mul1"], np.uint32).view(np.int32),
    }


def _scales(rng: np.random.Generator, channels: int, size: float) -> np.ndarray:
    return (rng.choice([-1.0, 1.0], channels) * size * np.exp(rng.normal(0, 0.1, channels))).astype(np.float16)
