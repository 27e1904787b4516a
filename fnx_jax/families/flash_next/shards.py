"""Host side: what of the network each rank holds: the split table.

Heads, recurrent groups, experts and vocabulary blocks are dealt in order; everything else is the same on every rank. A
KV head that serves query heads of several ranks lies on each of them; recurrent layers with fewer key heads than ranks
are the same everywhere.
"""

from dataclasses import dataclass

import numpy as np

from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.vocabulary_slices import LeadingSlices, Slices
from pallas_kernels.exl3.weight import BLOCK

Columns = list[np.ndarray]
"""Output columns of a linear layer that each rank holds, one int array a rank."""


@dataclass(frozen=True)
class Shards:
    """One rank's share, in numbers; static under jit. delta_ranks: over how many ranks recurrent layers are dealt."""

    ranks: int
    heads: int
    kv_heads: int
    delta_ranks: int
    delta_key_heads: int
    delta_value_heads: int
    experts: int


def deal(config: FlashNextConfig, ranks: int) -> Shards:
    """Deals a network over `ranks` devices. Raises ValueError naming what does not divide."""
    if ranks < 1 or ranks & (ranks - 1):
        raise ValueError(f"devices={ranks}: a power of two was wanted")
    if config.leaves % ranks:
        raise ValueError(f"devices={ranks} does not divide the {config.leaves} leaves of the expert sum")
    if config.heads % ranks:
        raise ValueError(f"devices={ranks} does not divide the {config.heads} query heads")
    if config.kv_heads % ranks and ranks % config.kv_heads:
        raise ValueError(f"devices={ranks} and {config.kv_heads} KV heads: neither divides the other")
    if config.delta_key_heads % ranks and config.delta_key_heads > ranks:
        raise ValueError(f"devices={ranks} does not divide the {config.delta_key_heads} recurrent key heads")
    delta_ranks = ranks if config.delta_key_heads % ranks == 0 else 1
    return Shards(
        ranks=ranks,
        heads=config.heads // ranks,
        kv_heads=max(1, config.kv_heads // ranks),
        delta_ranks=delta_ranks,
        delta_key_heads=config.delta_key_heads // delta_ranks,
        delta_value_heads=config.delta_value_heads // delta_ranks,
        experts=config.experts // ranks,
    )


def runs(pieces: list[tuple[int, int]]) -> np.ndarray:
    """Concatenates half-open ranges of columns."""
    return np.concatenate([np.arange(start, stop) for start, stop in pieces])


def query_columns(config: FlashNextConfig, shards: Shards) -> Columns:
    """Query and gate of each rank's heads."""
    width = 2 * config.head_size * shards.heads
    return [np.arange(rank * width, (rank + 1) * width) for rank in range(shards.ranks)]


def kv_columns(config: FlashNextConfig, shards: Shards) -> Columns:
    """Keys or values of the KV heads that each rank's query heads read."""
    per_group = config.heads // config.kv_heads
    first = [rank * shards.heads // per_group for rank in range(shards.ranks)]
    width = config.head_size
    return [np.arange(head * width, (head + shards.kv_heads) * width) for head in first]


def delta_columns(config: FlashNextConfig, shards: Shards) -> Columns:
    """Queries, keys and values of each rank's recurrent groups: channels of the convolution as well."""
    keys = shards.delta_key_heads * config.delta_key_size
    values = shards.delta_value_heads * config.delta_value_size
    all_keys = config.delta_key_heads * config.delta_key_size
    return [
        runs(
            [
                (rank * keys, (rank + 1) * keys),
                (all_keys + rank * keys, all_keys + (rank + 1) * keys),
                (2 * all_keys + rank * values, 2 * all_keys + (rank + 1) * values),
            ]
        )
        for rank in range(shards.delta_ranks)
    ]


def value_columns(config: FlashNextConfig, shards: Shards, width: int) -> Columns:
    """`width` columns of each of a rank's recurrent value heads."""
    columns = shards.delta_value_heads * width
    return [np.arange(rank * columns, (rank + 1) * columns) for rank in range(shards.delta_ranks)]


def vocabulary_slices(config: FlashNextConfig, shards: Shards) -> Slices:
    """How the head's logits are dealt: in blocks of 128 ids, padded to whole blocks and to as many on every rank."""
    blocks = -(-config.vocabulary // BLOCK)
    return Slices(config.vocabulary, width=-(-blocks // shards.ranks) * BLOCK, ranks=shards.ranks)


def draft_slices(config: FlashNextConfig, shards: Shards, blocks: int | None) -> Slices:
    """The first `blocks` blocks of 128 ids, where the head's logits are dealt as they are; None: all."""
    slices = vocabulary_slices(config, shards)
    if blocks is None or blocks * BLOCK >= config.vocabulary:
        return slices
    width = min(slices.width, blocks * BLOCK)
    return LeadingSlices(blocks * BLOCK, width=width, ranks=shards.ranks, whole_width=slices.width)


def vocabulary_columns(config: FlashNextConfig, shards: Shards) -> Columns:
    """The head's blocks of 128 ids, dealt in order; the last ranks may hold fewer."""
    width = vocabulary_slices(config, shards).width
    borders = [min(rank * width, config.vocabulary) for rank in range(shards.ranks + 1)]
    return [np.arange(start, stop) for start, stop in zip(borders[:-1], borders[1:], strict=True)]
