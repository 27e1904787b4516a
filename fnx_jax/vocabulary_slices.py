"""Traced, but for `parts`: a vocabulary dealt over ranks, and what the ranks tell each other about their slices.

Only a number a row, or a short list, crosses devices. With one rank nothing does, and that is the definition.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32, Shaped, UInt32

from fnx_jax.collectives import gather_columns, rank
from pallas_kernels.candidates import top_candidates

_NONE = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Slices:
    """Rank r holds ids [r * width, (r + 1) * width); those from `vocabulary` on are padding, whose values are -inf.

    Axis v is a rank's slice. Several ranks hold whole blocks of 128 ids each.
    """

    vocabulary: int
    width: int
    ranks: int = 1

    def apart(self) -> int:
        """How many ids lie between the first ids of two neighbouring ranks."""
        return self.width

    def parts(self, values_BV: Shaped[np.ndarray, "... V"]) -> list[Shaped[np.ndarray, "... v"]]:
        """Each rank's part of an array on the host, padded with zeros."""
        missing = self.ranks * self.width - self.vocabulary
        if missing:
            values_BV = np.pad(values_BV, [(0, 0)] * (values_BV.ndim - 1) + [(0, missing)])
        return np.split(values_BV, self.ranks, axis=-1)

    def ids(self) -> Int32[Array, "1 v"]:
        """The ids of this rank's slice, padding included."""
        return (rank(self.ranks) * self.apart() + jnp.arange(self.width, dtype=jnp.int32))[None]

    def padding(self) -> Bool[Array, "1 v"]:
        """Marks the columns of this rank's slice that are no ids."""
        return self.ids() >= self.vocabulary

    def gathered(self, x: Shaped[Array, "... K"]) -> Shaped[Array, "... RK"]:
        """What every rank holds, side by side in rank order, and so in the order of ids. Copies only."""
        return gather_columns(x, self.ranks)

    def everywhere(self, claim_B: Bool[Array, "B"]) -> Bool[Array, "B"]:
        """Whether a claim holds on every rank."""
        return self.gathered(claim_B[:, None]).all(axis=1)

    def largest(self, values_Bv: Float32[Array, "B v"]) -> Float32[Array, "B"]:
        """Each row's maximum over all ranks; NaN where it holds one."""
        return self.gathered(values_Bv.max(axis=1, keepdims=True)).max(axis=1)

    def total(self, sums: UInt32[Array, "M B 1"]) -> UInt32[Array, "M B 1"]:
        """Adds integers over all ranks, in no order that could matter."""
        return self.gathered(sums).sum(axis=-1, keepdims=True)

    def first_largest(self, scores_Bv: Float32[Array, "B v"]) -> Int32[Array, "B"]:
        """The lowest id among each row's largest scores over all ranks; the last id where a score is NaN."""
        ids_Bv = jnp.broadcast_to(self.ids(), scores_Bv.shape)
        score_B1 = scores_Bv.max(axis=1, keepdims=True)
        scores_BR = self.gathered(score_B1)
        ids_BR = self.gathered(first_largest(scores_Bv, ids_Bv)[:, None])
        return jnp.minimum(first_largest(scores_BR, ids_BR), self.vocabulary - 1)

    def top(self, values_Bv: Float32[Array, "B v"], count: int) -> tuple[Float32[Array, "B K"], Int32[Array, "B K"]]:
        """The first K = min(count, V) entries of all ranks in the order (value descending, id ascending), and ids.

        Each rank selects K of its own; the lists, laid side by side, are selected from again.
        """
        count = min(count, self.vocabulary)
        values_BK, column_BK = top_candidates(values_Bv, count)
        if self.ranks == 1:
            return values_BK, column_BK
        ids_BN = self.gathered(rank(self.ranks) * self.apart() + column_BK)
        values_BK, slot_BK = top_candidates(self.gathered(values_BK), count)
        return values_BK, jnp.take_along_axis(ids_BN, slot_BK, axis=1)

    def at(self, values_Bv: Float32[Array, "B v"], id_B: Int32[Array, "B"]) -> Float32[Array, "B 1"]:
        """The value of one id a row, from the rank that holds it."""
        column_B = jnp.clip(id_B - rank(self.ranks) * self.apart(), 0, self.width - 1)
        values_BR = self.gathered(jnp.take_along_axis(values_Bv, column_B[:, None], axis=1))
        return jnp.take_along_axis(values_BR, id_B[:, None] // self.apart(), axis=1)


@dataclass(frozen=True)
class LeadingSlices(Slices):
    """The leading columns of each rank's slice of a larger vocabulary, of which only ids below `vocabulary` count.

    whole_width: columns of a rank's whole slice; rank r holds ids [r * whole_width, r * whole_width + width).
    """

    whole_width: int = 0

    def apart(self) -> int:
        return self.whole_width


def whole(vocabulary: int) -> Slices:
    """A vocabulary on one device, without padding."""
    return Slices(vocabulary=vocabulary, width=vocabulary)


def first_largest(scores_BK: Float32[Array, "B K"], ids_BK: Int32[Array, "B K"]) -> Int32[Array, "B"]:
    """The lowest of the ids whose scores are largest, in whatever order they stand; 2**31 - 1 where a score is NaN."""
    largest_B1 = scores_BK.max(axis=1, keepdims=True)
    return jnp.where(scores_BK == largest_B1, ids_BK, jnp.int32(_NONE)).min(axis=1)
