"""Cases of the sweep: ops that read caches, the recurrence above all and attention over pages."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.gated_delta import DeltaSizes, DeltaWeights
from pallas_kernels.gated_delta.reference import DeltaInputs, delta_inputs, delta_step
from pallas_kernels.gated_delta.rows import depthwise
from pallas_kernels.sparse_attention import PageTable, attend, block_means, block_scores, keep_blocks, pool_dtype
from tests.sweep.case import ROWS, TILES, Case, normal, tiles

HEAD = 32
"""Size of a recurrent head: small ones show reordered sums that heads of 128 hide."""
SIZES = DeltaSizes(key_heads=2, value_heads=6, key_size=HEAD, value_size=HEAD)
CHANNELS = 2 * 2 * HEAD + 6 * HEAD
PAGE, BLOCK, PAGES, OF_LANE = 32, 4, 40, 20
DTYPES = ("float32", "bfloat16")
"""What caches may hold."""
OPERANDS = (*DTYPES, "float16")
"""What attention is swept in."""


def delta_weights() -> DeltaWeights:
    """Random convolution and decays."""
    return DeltaWeights(conv_CT=normal(1, CHANNELS, 4), decay_log=normal(2, 6), time_bias=normal(3, 6))


@cache
def delta_cases() -> dict[str, Case]:
    """The recurrence: its convolution, its inputs and one step (heads stand for rows). Rows of lanes: stages.py."""
    step = DeltaInputs(q=tiles(4, HEAD), k=tiles(5, HEAD, scale=0.1), v=tiles(6, HEAD), beta=tiles(7), decay=tiles(8))
    return {
        "depthwise": Case(depthwise, tiles(11, 4, 2560), normal(12, 2560, 4)),
        "delta_inputs": Case(
            lambda tile, w: delta_inputs(tile[0], tile[1], w, SIZES),
            (tiles(13, 4, CHANNELS), tiles(14, 12)),
            delta_weights(),
        ),
        "delta_step": Case(lambda tile, _: delta_step(*tile), (tiles(15, HEAD, HEAD), step)),
    }


def pool(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values as a pool of pages stores them."""
    return values.astype(dtype).view(pool_dtype(jnp.dtype(dtype)))


def page_tables() -> np.ndarray:
    """Each row's pages, in no order."""
    rng = np.random.default_rng(18)
    lanes = np.stack([rng.permutation(PAGES)[:OF_LANE] for _ in range(TILES * ROWS)])
    return lanes.reshape(TILES, ROWS, OF_LANE).astype(np.int32)


@cache
def attend_case(dtype: str) -> Case:
    """Attention of rows at positions from 0 up, operands of one dtype."""
    rng = np.random.default_rng(19)
    position = rng.integers(0, PAGE * OF_LANE, (TILES, ROWS)).astype(np.int32)
    position[0, :4] = 0, 2, 3, 4
    complete = (position + 1) // BLOCK
    most = 40
    kept = np.full((TILES, ROWS, most), PAGE * OF_LANE // BLOCK, np.int32)
    for place, blocks in np.ndenumerate(complete):
        ids = np.sort(rng.permutation(blocks)[:most])
        kept[place][: len(ids)] = ids

    def over_pages(tile: tuple, pools: tuple) -> jax.Array:
        q, pages, kept, count, position = tile
        return attend(q, pools[0], pools[1], PageTable(pages, PAGE), kept, count, position, BLOCK)

    count = np.minimum(complete, most).astype(np.int32)
    pools = tuple(pool(normal(seed, PAGES, PAGE, 2, 256), dtype) for seed in (20, 21))
    return Case(over_pages, (tiles(22, 6, 256), page_tables(), kept, count, position), pools)


@cache
def index_cases() -> dict[str, Case]:
    """Means of raw keys, scores of blocks and their selection."""
    seen = np.random.default_rng(23).integers(0, PAGE * OF_LANE // BLOCK + 1, (TILES, ROWS)).astype(np.int32)

    def scores(tile: tuple, pooled: jax.Array) -> tuple:
        q, pages, seen = tile
        found = block_scores(q, pooled, PageTable(pages, PAGE), seen)
        return found, keep_blocks(found, seen, 40)

    def means(tile: tuple, raw: jax.Array) -> jax.Array:
        return block_means(raw, PageTable(tile[0], PAGE), tile[1], BLOCK)

    raw = {dtype: pool(normal(24, PAGES, PAGE, 128), dtype) for dtype in DTYPES}
    pooled = normal(25, PAGES, PAGE // BLOCK, 128)
    found = {f"block_means_{dtype}": Case(means, (page_tables(), seen // 2), keys) for dtype, keys in raw.items()}
    return found | {"block_scores": Case(scores, (tiles(26, 4, 128), page_tables(), seen), pooled)}


def cases() -> dict[str, Case]:
    """Every case of this file."""
    return delta_cases() | {f"attend_{dtype}": attend_case(dtype) for dtype in OPERANDS} | index_cases()
