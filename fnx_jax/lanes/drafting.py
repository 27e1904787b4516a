"""Traced: a chain of drafts for up to a tile of lanes, one row a lane, one pass of the draft head a depth for all.

Each draft is drawn as the model would draw that position, from the head's logits over the draft vocabulary, so that
drafter and model agree as often as they can. Nothing here can change a token of a reply. Read next: stepped.py, which
makes the same steps one by one.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

from fnx_jax.families import Family
from fnx_jax.lanes import sampling
from fnx_jax.lanes.logprobs import log_softmax
from fnx_jax.lanes.scaled import OVER_VOCABULARY, Adjustments, DrawParams
from fnx_jax.vocabulary_slices import Slices
from pallas_kernels.elementary import exp
from pallas_kernels.gated_delta import RowPlaces
from pallas_kernels.row_tiles import ROW_TILE
from pallas_kernels.vocabulary_sums import block_sums

DEPTH_MOST = ROW_TILE - 1
"""Drafts of a chain at most: with the pending token they fill a tile."""


@struct.dataclass
class ChainRows:
    """Where each lane's chain starts.

    lane_B, position_B: int32, the lane and its newest kept row, whose streams are in the ring. token_B: int32, the
    token after it. depth_B: int32, drafts wanted, 0 in padding.
    """

    lane_B: Any
    position_B: Any
    token_B: Any
    depth_B: Any


@struct.dataclass
class Chains:
    """What the lanes drafted: token_BD int32, chance_BD float32, both [B, DEPTH_MOST]; a row's first count_B are real.

    chance_BD: each draft's probability at temperature 1 over the draft vocabulary.
    """

    token_BD: jax.Array
    chance_BD: jax.Array
    count_B: jax.Array


@struct.dataclass
class Walk:
    """Chains on their way. step: drafts made by the lanes that go on. product_B: the chances so far, multiplied.

    streams, token_B: what the next step takes: the last layer's streams or the head's own, and the token after them.
    active_B: the lanes that go on.
    """

    step: jax.Array
    streams: jax.Array
    token_B: jax.Array
    product_B: jax.Array
    active_B: jax.Array
    chains: Chains


def start(streams_LRN: Float32[Array, "L R N"], rows: ChainRows) -> Walk:
    """Every lane that wants a draft, before its first."""
    count = rows.lane_B.shape[0]
    return Walk(
        step=jnp.int32(0),
        streams=streams_LRN[rows.lane_B, rows.position_B % streams_LRN.shape[1]],
        token_B=jnp.asarray(rows.token_B),
        product_B=jnp.ones((count,), jnp.float32),
        active_B=jnp.asarray(rows.depth_B) > 0,
        chains=Chains(
            token_BD=jnp.zeros((count, DEPTH_MOST), jnp.int32),
            chance_BD=jnp.zeros((count, DEPTH_MOST), jnp.float32),
            count_B=jnp.zeros((count,), jnp.int32),
        ),
    )


def advance(
    walk: Walk,
    streams: Float32[Array, "B N"],
    logits_Bv: Float32[Array, "B v"],
    token_B: Int32[Array, " B"],
    finite_B: Bool[Array, " B"],
    rows: ChainRows,
    confidence: Float32[Array, ""],
    slices: Slices,
) -> Walk:
    """Takes one more draft of every lane that goes on.

    A draft that is drawn from logits that are not finite is dropped, and so is a second one or a later one once the
    product of its chain's chances falls below `confidence`. Either ends the chain.
    """
    chance_B = _chances(logits_Bv, token_B, slices)
    product_B = walk.product_B * chance_B
    likely_B = product_B >= confidence
    kept_B = walk.active_B & finite_B & (likely_B | (walk.step == 0))
    chains = walk.chains
    return Walk(
        step=walk.step + 1,
        streams=streams,
        token_B=token_B,
        product_B=product_B,
        active_B=kept_B & likely_B & (walk.step + 1 < rows.depth_B),
        chains=Chains(
            token_BD=chains.token_BD.at[:, walk.step].set(token_B),
            chance_BD=chains.chance_BD.at[:, walk.step].set(chance_B),
            count_B=chains.count_B + kept_B.astype(jnp.int32),
        ),
    )


@dataclass(frozen=True)
class Drafter:
    """What the one draft program knows before it runs. slices: of the draft vocabulary."""

    family: Family
    config: Any
    shards: Any
    page: int
    slices: Slices

    def run(
        self,
        params: Any,
        plane: Any,
        streams_LRN: Float32[Array, "L R N"],
        rows: ChainRows,
        pages_LP: Int32[Array, "L P"],
        valid_v: Bool[Array, "v"],
        draws: DrawParams,
        confidence: Float32[Array, ""],
        adjustments: Adjustments | None = None,
    ) -> tuple[Any, Chains]:
        """Drafts until every chain has its depth or has ended.

        Args:
          params: as from the family's `draft_params`. plane: the draft layer's pages; what chains write there lies past
            the lanes' kept pairs.
          valid_v, adjustments: as for the model's own draws, this rank's whole slice of the vocabulary.
          draws: of each lane's first draft. confidence: see `advance`.
        Returns: the pages and the drafts.
        """
        valid_v = valid_v[: self.slices.width]
        if adjustments is not None:
            adjustments = leading(adjustments, self.slices)

        def step(carry: tuple[Any, Walk]) -> tuple[Any, Walk]:
            plane, walk = carry
            places = RowPlaces(
                lane_B=rows.lane_B,
                position_B=rows.position_B + walk.step,
                live_B=walk.active_B,
                speculative_B=jnp.zeros_like(walk.active_B),
            )
            plane, streams = self.family.draft_rows(
                params, self.config, self.shards, plane, walk.streams, walk.token_B, places, pages_LP, self.page
            )
            logits = self.family.draft_logits(params, self.config, streams, self.slices)
            landing = replace(draws, position_B=draws.position_B + walk.step)
            if adjustments is None:
                drawn = sampling.draw(logits, valid_v, landing, slices=self.slices)
            else:
                drawn = sampling.draw_adjusted(logits, valid_v, landing, adjustments, slices=self.slices)
            return plane, advance(walk, streams, logits, *drawn, rows, confidence, self.slices)

        plane, walk = lax.while_loop(lambda carry: carry[1].active_B.any(), step, (plane, start(streams_LRN, rows)))
        return plane, walk.chains


def leading(adjustments: Adjustments, slices: Slices) -> Adjustments:
    """Adjustments over the leading columns of a rank's slice."""
    return replace(adjustments, **{name: getattr(adjustments, name)[:, : slices.width] for name in OVER_VOCABULARY})


def _chances(logits_Bv: jax.Array, token_B: jax.Array, slices: Slices) -> jax.Array:
    """The drawn tokens' probabilities at temperature 1."""
    ceiling_B = slices.largest(logits_Bv)
    sums_BN = slices.gathered(block_sums(logits_Bv, ceiling_B))
    return exp(log_softmax(slices.at(logits_Bv, token_B), ceiling_B, sums_BN))[:, 0]
