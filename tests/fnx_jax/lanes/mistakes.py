"""Wrong twins of what ranks tell each other about a dealt vocabulary. Each makes one mistake, chosen at run time.

A mapped axis of one device stands in for the ranks: real ones that disagree could wait for each other for ever.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnx_jax.axes import RANKS
from fnx_jax.collectives import gather_columns, rank
from fnx_jax.lanes import sampling
from fnx_jax.lanes.scaled import OVER_VOCABULARY, Adjustments, DrawParams, Scaled
from fnx_jax.vocabulary_slices import Slices
from pallas_kernels.tree_sum import tree_sum
from tests.fnx_jax.lanes.sliced import CANDIDATES, Arguments, padded, report, slices_of

MISTAKES = (
    "none",
    "ties are drawn from the later rank",
    "ties are listed from the later rank",
    "each rank lists half of its candidates",
    "the own slice's mass is the total",
    "the own slice's maximum is the row's",
    "the own slice is finite, so the row is",
    "noise is keyed by the column",
    "padding may be drawn",
    "each rank joins its own block sums first",
    "the target is read from the own slice",
    "a filter wider than the list is cut there",
)


class Backwards(Slices):
    """Gathers in reverse rank order."""

    def gathered(self, x: jax.Array) -> jax.Array:
        return jnp.concatenate(jnp.split(gather_columns(x, self.ranks), self.ranks, axis=-1)[::-1], axis=-1)


@dataclass(frozen=True)
class Planted(Slices):
    """Slices that make one mistake. mistake: its place in MISTAKES, traced."""

    mistake: Any = 0

    def either(self, name: str, wrong: Any, right: Any) -> Any:
        """`wrong` where this is the mistake to make."""
        made = self.mistake == MISTAKES.index(name)
        return jax.tree.map(lambda a, b: jnp.where(made, a, b), wrong, right)

    def ids(self) -> jax.Array:
        column = jnp.arange(self.width, dtype=jnp.int32)[None]
        return self.either("noise is keyed by the column", column, super().ids())

    def padding(self) -> jax.Array:
        right = slices_of(self.vocabulary, self.ranks).padding()
        return self.either("padding may be drawn", jnp.zeros_like(right), right)

    def everywhere(self, claim_B: jax.Array) -> jax.Array:
        return self.either("the own slice is finite, so the row is", claim_B, super().everywhere(claim_B))

    def largest(self, values_Bv: jax.Array) -> jax.Array:
        own_B = values_Bv.max(axis=1)
        return self.either("the own slice's maximum is the row's", own_B, super().largest(values_Bv))

    def total(self, sums: jax.Array) -> jax.Array:
        return self.either("the own slice's mass is the total", sums, super().total(sums))

    def first_largest(self, scores_Bv: jax.Array) -> jax.Array:
        column_B1 = jnp.argmax(scores_Bv, axis=1, keepdims=True).astype(jnp.int32)
        scores_BR = self.gathered(scores_Bv.max(axis=1, keepdims=True))
        last_B1 = self.ranks - 1 - jnp.argmax(scores_BR[:, ::-1], axis=1, keepdims=True)
        ids_BR = self.gathered(rank(self.ranks) * self.width + column_B1)
        late_B = jnp.take_along_axis(ids_BR, last_B1, axis=1)[:, 0]
        return self.either("ties are drawn from the later rank", late_B, super().first_largest(scores_Bv))

    def top(self, values_Bv: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
        right, backwards = slices_of(self.vocabulary, self.ranks), Backwards(self.vocabulary, self.width, self.ranks)
        bound_B1 = jnp.sort(values_Bv, axis=1)[:, -(count // 2)][:, None]
        short = right.top(jnp.where(values_Bv >= bound_B1, values_Bv, -jnp.inf), count)
        found = self.either("each rank lists half of its candidates", short, right.top(values_Bv, count))
        return self.either("ties are listed from the later rank", backwards.top(values_Bv, count), found)

    def gathered(self, x: jax.Array) -> jax.Array:
        right = super().gathered(x)
        if x.dtype != jnp.float32 or x.shape[1] != self.width // 128:
            return right
        own = jnp.pad(tree_sum(x)[:, None], ((0, 0), (0, x.shape[1] - 1)))
        return self.either("each rank joins its own block sums first", super().gathered(own), right)

    def at(self, values_Bv: jax.Array, id_B: jax.Array) -> jax.Array:
        own_B1 = jnp.take_along_axis(values_Bv, id_B[:, None] % self.width, axis=1)
        return self.either("the target is read from the own slice", own_B1, super().at(values_Bv, id_B))


def plant_in_widening(patch: pytest.MonkeyPatch) -> None:
    """Makes the mistake that is none of Slices."""
    whole = sampling.kept_everywhere

    def kept(scaled: Scaled, params: DrawParams) -> jax.Array:
        right, slices = whole(scaled, params), scaled.slices
        if not isinstance(slices, Planted):
            return right
        listed = scaled.z_BV >= slices.top(scaled.z_BV, CANDIDATES)[0][:, -1:]
        return slices.either("a filter wider than the list is cut there", right & listed, right)

    patch.setattr(sampling, "kept_everywhere", kept)


def planted_report(vocabulary: int, ranks: int) -> Callable[[Arguments, int], dict[str, Any]]:
    """Compiles (arguments of the definition, mistake) -> `report` of every rank, stacked."""
    right = slices_of(vocabulary, ranks)
    names = {name: 0 if name in OVER_VOCABULARY else None for name in Adjustments.__dataclass_fields__}
    axes = ((0, 0, None, Adjustments(**names), None), None)

    def of_rank(arguments: Arguments, mistake: jax.Array) -> dict[str, Any]:
        return report(arguments, Planted(right.vocabulary, right.width, right.ranks, mistake))

    compiled = jax.jit(jax.vmap(of_rank, in_axes=axes, axis_name=RANKS))

    def run(arguments: Arguments, mistake: int) -> dict[str, Any]:
        logits, valid, params, adjustments, target = arguments
        parts = {name: np.stack(right.parts(getattr(adjustments, name))) for name in OVER_VOCABULARY}
        stacked = np.stack(np.split(padded(logits, right), ranks, axis=1))
        valid = np.stack(right.parts(valid))
        return compiled((stacked, valid, params, replace(adjustments, **parts), target), np.int32(mistake))

    return run
