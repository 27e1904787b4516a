"""Host side: cuts weights into the parts that ranks hold. NumPy only; every rank's part has the same shape.

Outputs come in whole blocks of 128 columns, filled up with zeros: a dot over whole blocks gives a column the same bits
wherever the column is, and an EXL3 rotation mixes the columns of its block.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fnx_jax.families.flash_next.outlines import outline_of
from fnx_jax.families.flash_next.shards import Columns
from pallas_kernels.exl3 import DecodedWeight, Exl3Weight
from pallas_kernels.exl3.weight import BLOCK, TILE


def plain_parts(weight_OI: np.ndarray, columns: Columns) -> list[np.ndarray]:
    """Each rank's rows of a weight stored [out, in], zero rows up to whole blocks."""
    height = _blocks(max(len(wanted) for wanted in columns)) * BLOCK
    parts = []
    for wanted in columns:
        part = np.zeros((height, weight_OI.shape[1]), weight_OI.dtype)
        part[: len(wanted)] = weight_OI[wanted]
        parts.append(part)
    return parts


def exl3_parts(
    weight: Exl3Weight | DecodedWeight, columns: Columns
) -> tuple[list[Exl3Weight | DecodedWeight], list[np.ndarray] | None]:
    """Each rank's blocks of an EXL3 layer, and where the wanted columns lie among their outputs.

    Returns None for the places where every rank's columns lead its blocks in order, so that a cut suffices.
    """
    held = [np.unique(wanted // BLOCK) for wanted in columns]
    most = max(map(len, held))
    places = [
        (np.searchsorted(blocks, wanted // BLOCK) * BLOCK + wanted % BLOCK).astype(np.int32)
        for blocks, wanted in zip(held, columns, strict=True)
    ]
    parts = [_take_blocks(weight, blocks, most) for blocks in held]
    if all(np.array_equal(place, np.arange(len(place))) for place in places):
        return parts, None
    return parts, places


def _take_blocks(weight: Any, blocks: np.ndarray, most: int) -> Any:
    outputs = _spread(blocks, BLOCK)
    changes: dict[str, Any] = {"svh": _take(weight.svh, outputs, 0, most * BLOCK)}
    if weight.bias is not None:
        changes["bias"] = _take(weight.bias, outputs, 0, most * BLOCK)
    if isinstance(weight, DecodedWeight):
        return replace(weight, wq=_take(weight.wq, outputs, 0, most * BLOCK), **changes)
    tiles = BLOCK // TILE
    return replace(weight, words=_take(weight.words, _spread(blocks, tiles), 1, most * tiles), **changes)


def _spread(blocks: np.ndarray, width: int) -> np.ndarray:
    return (blocks[:, None] * width + np.arange(width)[None, :]).reshape(-1)


def _take(array: np.ndarray, index: np.ndarray, axis: int, length: int) -> np.ndarray:
    part = np.take(array, index, axis)
    fill = [(0, length - part.shape[a] if a == axis else 0) for a in range(part.ndim)]
    return np.pad(part, fill)


def _blocks(columns: int) -> int:
    return -(-columns // BLOCK)


def pool_parts(
    weights: list[Any], ranks: int, own: Sequence[int]
) -> tuple[list[list[Any]], list[np.ndarray], list[np.ndarray]]:
    """Stacks the weights that each rank holds into a pool for each structure and shape.

    Args: weights: by expert id; outlines will do for those of ranks not in `own`.
    Returns: pools as [kind][rank], with lines of zeros where a rank has fewer of a kind, and outlines for ranks not in
    `own`; and for each rank, the pool and the line of each of its weights, int32.
    """
    kinds: dict[tuple, int] = {}
    kind = np.array([kinds.setdefault(_kind(weight), len(kinds)) for weight in weights], np.int32)
    share = len(weights) // ranks
    by_rank = kind.reshape(ranks, share)
    line = np.stack([[int(np.sum(of[:i] == of[i])) for i in range(share)] for of in by_rank]).astype(np.int32)
    pools: list[list[Any]] = []
    for number in range(len(kinds)):
        members = [[weights[r * share + int(i)] for i in np.flatnonzero(by_rank[r] == number)] for r in range(ranks)]
        example, most = next(m[0] for m in members if m), max(map(len, members))
        blank = outline_of(example)
        stacked = jax.tree.map(lambda leaf, most=most: np.broadcast_to(leaf, (most, *leaf.shape)), blank)
        fills = [[blank] * (most - len(held)) for held in members]
        pools.append([_stack(members[r] + fills[r]) if r in own else stacked for r in range(ranks)])
    return pools, list(by_rank), list(line)


def _kind(weight: Any) -> tuple:
    leaves, structure = jax.tree.flatten(weight)
    return (structure, *((leaf.shape, leaf.dtype) for leaf in leaves))


def _stack(weights: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *weights)
