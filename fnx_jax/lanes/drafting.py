"""Traced: a chain of drafts for up to a tile of lanes, one row a lane, one pass of the draft head a depth for all.

Each draft is drawn as the model would draw that position, from the head's logits over the draft vocabulary, so that
drafter and model agree as often as they can. Nothing here can change a token of a reply. Read next: rounds.py.
"""

from dataclasses import dataclass, replace
from functools import partial
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
class _Walk:
    """step: drafts made by the lanes that go on. product_B: the chances so far, multiplied."""

    step: jax.Array
    plane: Any
    streams: jax.Array
    token_B: jax.Array
    product_B: jax.Array
    active_B: jax.Array
    chains: Chains


@dataclass(frozen=True)
class Drafter:
    """What a draft program knows before it runs. slices: of the draft vocabulary."""

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
        """Drafts until every lane has its depth, or its chain is too unlikely to be kept.

        Args:
          params: as from the family's `draft_params`. plane: the draft layer's pages; what chains write there lies past
            the lanes' kept pairs.
          valid_v, adjustments: as for the model's own draws, this rank's whole slice of the vocabulary.
          draws: of each lane's first draft. confidence: a chain's second draft and later ones are dropped once the
            product of its chances falls below this.
        Returns: the pages and the drafts. A logit that is not finite ends its lane's chain.
        """
        count = rows.lane_B.shape[0]
        valid_v = valid_v[: self.slices.width]
        if adjustments is not None:
            cut = {name: getattr(adjustments, name)[:, : self.slices.width] for name in OVER_VOCABULARY}
            adjustments = replace(adjustments, **cut)
        step = partial(self._step, params, rows, pages_LP, valid_v, draws, confidence, adjustments)
        start = _Walk(
            step=jnp.int32(0),
            plane=plane,
            streams=streams_LRN[rows.lane_B, rows.position_B % streams_LRN.shape[1]],
            token_B=rows.token_B,
            product_B=jnp.ones((count,), jnp.float32),
            active_B=rows.depth_B > 0,
            chains=Chains(
                token_BD=jnp.zeros((count, DEPTH_MOST), jnp.int32),
                chance_BD=jnp.zeros((count, DEPTH_MOST), jnp.float32),
                count_B=jnp.zeros((count,), jnp.int32),
            ),
        )
        end = lax.while_loop(lambda walk: walk.active_B.any(), step, start)
        return end.plane, end.chains

    def _step(
        self,
        params: Any,
        rows: ChainRows,
        pages_LP: jax.Array,
        valid_v: jax.Array,
        draws: DrawParams,
        confidence: jax.Array,
        adjustments: Adjustments | None,
        walk: _Walk,
    ) -> _Walk:
        """One more draft for every lane that goes on."""
        places = RowPlaces(
            lane_B=rows.lane_B,
            position_B=rows.position_B + walk.step,
            live_B=walk.active_B,
            speculative_B=jnp.zeros_like(walk.active_B),
        )
        plane, streams = self.family.draft_rows(
            params, self.config, self.shards, walk.plane, walk.streams, walk.token_B, places, pages_LP, self.page
        )
        logits = self.family.draft_logits(params, self.config, streams, self.slices)
        landing = replace(draws, position_B=draws.position_B + walk.step)
        if adjustments is None:
            token_B, finite_B = sampling.draw(logits, valid_v, landing, slices=self.slices)
        else:
            token_B, finite_B = sampling.draw_adjusted(logits, valid_v, landing, adjustments, slices=self.slices)
        chance_B = _chances(logits, token_B, self.slices)
        product_B = walk.product_B * chance_B
        likely_B = product_B >= confidence
        kept_B = walk.active_B & finite_B & (likely_B | (walk.step == 0))
        chains = walk.chains
        return _Walk(
            step=walk.step + 1,
            plane=plane,
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


def _chances(logits_Bv: jax.Array, token_B: jax.Array, slices: Slices) -> jax.Array:
    """The drawn tokens' probabilities at temperature 1."""
    ceiling_B = slices.largest(logits_Bv)
    sums_BN = slices.gathered(block_sums(logits_Bv, ceiling_B))
    return exp(log_softmax(slices.at(logits_Bv, token_B), ceiling_B, sums_BN))[:, 0]
