"""Cases of the sweep: matmuls with every kind of weight, at the row lengths of the real model."""

from functools import cache

import jax.numpy as jnp
import numpy as np

from pallas_kernels.dense_matmul import linear
from pallas_kernels.exl3 import Exl3Weight, decoded
from pallas_kernels.expert_matmul import ExpertLines, expert_matmul, resident_map
from tests.sweep.case import ROWS, TILES, Case, normal, tiles

SHAPES = {
    "64_512": (64, 512),
    "256_384": (256, 384),
    "640_2560": (640, 2560),
    "2560_640": (2560, 640),
    "2560_1": (2560, 1),
}
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}
EXPERTS, FFN, HIDDEN = 6, 128, 256


def packed(seed: int, inputs: int, outputs: int, bits: int, *lead: int) -> Exl3Weight:
    """A packed weight of random bits."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 1 << 32, (*lead, inputs // 16, outputs // 16, 8 * bits), dtype=np.uint64)
    return Exl3Weight(
        words=words.astype(np.uint32),
        suh=rng.choice([-1, 1], (*lead, inputs)).astype(np.float16),
        svh=(0.02 * rng.standard_normal((*lead, outputs))).astype(np.float16),
        codebook="mul1",
    )


@cache
def expert_case() -> Case:
    """Two widths of packed experts and one plain pool, lines out of order; one row takes no part in slot 0."""
    lines = ExpertLines(
        gate=(packed(1, HIDDEN, FFN, 3, 4), packed(2, HIDDEN, FFN, 4, 2)),
        up=(packed(3, HIDDEN, FFN, 4, 6),),
        down=(normal(4, 6, HIDDEN, FFN, scale=0.1).astype(jnp.bfloat16),),
    )
    pools = np.array([[0, 1, 0, 0, 1, 0], [0] * 6, [0] * 6])
    places = np.array([[3, 0, 1, 0, 1, 2], [5, 0, 3, 1, 2, 4], [0, 2, 4, 1, 3, 5]])
    experts = np.sort(np.random.default_rng(5).integers(0, EXPERTS, (TILES, ROWS, 2)).astype(np.int32), axis=-1)
    experts[:, 7, 1] = EXPERTS
    return Case(
        lambda tile, shared: expert_matmul(tile[0], tile[1], shared, resident_map(pools, places), FFN),
        (tiles(6, HIDDEN), experts),
        lines,
    )


@cache
def linear_cases() -> dict[str, Case]:
    """Plain weights of every dtype, packed and decoded ones."""
    found = {}
    for shape, (inputs, outputs) in SHAPES.items():
        for dtype in DTYPES:
            weight = normal(inputs + outputs, outputs, inputs, scale=0.1).astype(DTYPES[dtype])
            found[f"linear_{dtype}_{shape}"] = Case(linear, tiles(inputs, inputs), weight)
    exl3 = packed(7, 256, 384, 4)
    found["linear_exl3"] = Case(linear, tiles(8, 256), exl3)
    found["linear_decoded"] = Case(linear, tiles(8, 256), decoded(exl3))
    return found


def cases() -> dict[str, Case]:
    """Every case of this file."""
    return linear_cases() | {"expert_matmul": expert_case()}
