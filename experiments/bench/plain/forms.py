"""Traced: the choices that plain code has besides the model: in which form each part is written.

None is the best at every number of rows, so the bench tries them (choose.py) and keeps the fastest.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax

from fnx_jax.axes import RANKS
from fnx_jax.families.flash_next.cache import delta_sizes
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.shards import Shards
from pallas_kernels.gated_delta import DeltaSizes


@dataclass(frozen=True)
class Forms:
    """experts: how routed experts meet their rows, see experts.py. height: rows of a tile where they are sorted.

    chunk: rows of a chunk of the recurrence in prompts, 0 for one by one. sums: whether output projections are split by
    inputs over the ranks, and summed, instead of by nothing.
    """

    config: FlashNextConfig
    shards: Shards
    experts: Literal["gather", "dense", "sorted"]
    height: int = 32
    chunk: int = 64
    sums: bool = False

    @property
    def delta(self) -> DeltaSizes:
        """This rank's share of a recurrent layer."""
        return delta_sizes(self.config, self.shards)

    def total(self, x: jax.Array) -> jax.Array:
        """The sum over ranks, in whatever order."""
        return x if self.shards.ranks == 1 else jax.lax.psum(x, RANKS)

    def project(self, linear: Any, heads: jax.Array, weight: Any, ranks: int) -> jax.Array:
        """An output projection of heads that lie on `ranks` ranks."""
        if ranks == 1:
            return linear(heads, weight, self.config.hidden)
        if self.sums:
            return self.total(linear(heads, weight, self.config.hidden))
        return linear(jax.lax.all_gather(heads, RANKS, axis=1, tiled=True), weight, self.config.hidden)
