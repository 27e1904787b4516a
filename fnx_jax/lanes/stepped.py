"""Host side: chains of drafts driven step by step, by the programs that serve: where the network runs layer by layer.

The draft layer is an attention layer like others and its logits come from the same head, so hardly anything has to be
compiled for drafts alone. Between two steps the host looks which lanes go on. Read next: drafting.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fnx_jax.families import Family
from fnx_jax.lanes import sampling
from fnx_jax.lanes.drafting import ChainRows, Chains, advance, leading, start
from fnx_jax.lanes.layered import LayeredPrograms
from fnx_jax.lanes.scaled import Adjustments, DrawParams
from fnx_jax.mesh import DEALT, SAME, on_ranks
from fnx_jax.vocabulary_slices import Slices
from pallas_kernels.gated_delta import RowPlaces


@dataclass(frozen=True)
class SteppedDrafter:
    """The steps of drafting.Drafter, one program after the other; `run` takes over the buffers of the plane.

    cut, cut_adjustments: to the draft vocabulary, of what lies over the whole one.
    """

    layers: LayeredPrograms
    start: Callable[..., Any]
    logits: Callable[..., Any]
    draw: Callable[..., Any]
    draw_adjusted: Callable[..., Any]
    advance: Callable[..., Any]
    cut: Callable[..., Any]
    cut_adjustments: Callable[..., Any]

    def run(
        self,
        params: Any,
        plane: Any,
        streams_LRN: jax.Array,
        rows: ChainRows,
        pages_LP: np.ndarray,
        valid_V: jax.Array,
        draws: DrawParams,
        confidence: np.float32,
        adjustments: Adjustments | None = None,
    ) -> tuple[Any, Chains]:
        """As drafting.Drafter.run, but for params, which are the model's own. rows, draws: host arrays."""
        valid_v, walk = self.cut(valid_V), self.start(streams_LRN, rows)
        adjusted = () if adjustments is None else (self.cut_adjustments(adjustments),)
        draw, step = self.draw_adjusted if adjusted else self.draw, 0
        while (active_B := np.asarray(walk.active_B)).any():
            places = RowPlaces(
                lane_B=rows.lane_B,
                position_B=rows.position_B + np.int32(step),
                live_B=active_B,
                speculative_B=np.zeros_like(active_B),
            )
            plane, streams = self.layers.draft_rows(params, plane, walk.streams, walk.token_B, places, pages_LP)
            logits = self.logits(params, streams)
            landing = replace(draws, position_B=draws.position_B + np.int32(step))
            walk = self.advance(walk, streams, logits, *draw(logits, valid_v, landing, *adjusted), rows, confidence)
            step += 1
        return plane, walk.chains


def stepped_drafter(
    family: Family,
    config: Any,
    shards: Any,
    mesh: Mesh,
    layers: LayeredPrograms,
    slices: Slices,
    logits: Callable[..., Any],
    draw: Callable[..., Any],
    draw_adjusted: Callable[..., Any],
) -> SteppedDrafter:
    """Binds the static facts. slices: of the draft vocabulary.

    logits, draw, draw_adjusted: the model's own programs, which are the drafter's as well over the whole vocabulary.
    """
    same, dealt = lambda *layouts: SAME, lambda *layouts: DEALT if mesh.size > 1 else SAME
    common: dict[str, Any] = dict(
        layers=layers,
        start=on_ranks(start, mesh, same),
        advance=on_ranks(partial(advance, slices=slices), mesh, same),
    )
    if slices == family.vocabulary_slices(config, shards):
        return SteppedDrafter(
            **common,
            logits=lambda params, streams: logits(family.with_draft_mixer(params), streams),
            draw=draw,
            draw_adjusted=draw_adjusted,
            cut=lambda valid_V: valid_V,
            cut_adjustments=lambda adjustments: adjustments,
        )
    narrow = on_ranks(lambda params, streams: family.draft_logits(params, config, streams, slices), mesh, dealt)
    return SteppedDrafter(
        **common,
        logits=lambda params, streams: narrow(family.draft_params(params), streams),
        draw=on_ranks(partial(sampling.draw, slices=slices), mesh, same),
        draw_adjusted=on_ranks(partial(sampling.draw_adjusted, slices=slices), mesh, same),
        cut=on_ranks(lambda valid_V: valid_V[: slices.width], mesh, dealt),
        cut_adjustments=on_ranks(partial(leading, slices=slices), mesh, lambda layout: layout),
    )
