"""Traced: the short list of compiled programs that serving runs. Shapes are fixed, so nothing compiles after warm-up.

Read next: rounds.py, which calls them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from fnx_jax.engine.limits import LOGPROBS_MOST
from fnx_jax.families import Family
from fnx_jax.families.rows import Rows
from fnx_jax.lanes import sampling, state
from fnx_jax.lanes.drafting import Drafter
from fnx_jax.lanes.layered import layered_programs
from fnx_jax.lanes.logprobs import row_logprobs
from fnx_jax.lanes.scaled import OVER_VOCABULARY, Adjustments
from fnx_jax.lanes.state import LaneState, pair_up
from fnx_jax.lanes.stepped import stepped_drafter
from fnx_jax.mesh import DEALT, SAME, on_ranks, place_dealt
from fnx_jax.vocabulary_slices import Slices
from pallas_kernels.gated_delta.rows import read_taps
from pallas_kernels.row_tiles import ROW_TILE


@dataclass(frozen=True)
class Programs:
    """Jitted functions of one model.

    rows: (params, state, rows, pages_LP) -> state, streams of the block's rows; the state's buffers are taken over.
    owes: height -> whether `rows` leaves the pairs of a block so high for later, see owed.py.
    absorb: (params, draft plane, streams_LRN, rows, pages_LP) -> plane with the rows' pairs; it is taken over.
    tile: (streams_BN, first) -> the streams of the tile that starts at row `first`.
    logits: (params, streams_BN) -> raw logits_Bv, each rank's slice of the vocabulary: what the programs below take.
    whole: logits_Bv -> logits_BV, gathered on every rank; for those who read logits, no draw needs it.
    commit: (params, state, length_L) -> state, donated.
    draw, draw_adjusted: as in sampling; ids and adjustments over the vocabulary dealt as `deal_columns` does.
    finite: logits_Bv -> bool [B].
    draft: (params, draft plane, streams_LRN, rows, pages_LP, valid_V, draws, confidence[, adjustments]) -> plane,
      chains, as in drafting.Drafter; the plane's buffers are taken over.
    logprobs: (logits_Bv, target_B) as in row_logprobs with its LOGPROBS_MOST likeliest ids; callers cut.
    """

    rows: Callable[..., Any]
    owes: Callable[[int], bool]
    absorb: Callable[..., Any]
    tile: Callable[..., Any]
    logits: Callable[..., Any]
    whole: Callable[..., Any]
    commit: Callable[..., Any]
    draw: Callable[..., Any]
    draw_adjusted: Callable[..., Any]
    logprobs: Callable[..., Any]
    finite: Callable[..., Any]
    draft: Callable[..., Any]


def run_rows(
    family: Family,
    config: Any,
    shards: Any,
    page: int,
    params: Any,
    lanes: LaneState,
    rows: Rows,
    pages_LP: Int[Array, "L P"],
) -> tuple[LaneState, jax.Array]:
    """One tile of rows through the network, and their pairs into the draft head's memory, where there is one.

    Returns the lanes after it and the tile's last streams.
    """
    cache, streams_BN = family.forward_rows(params, config, shards, lanes.cache, rows, pages_LP, page)
    before, recent = pair_up(lanes.streams_LRN, rows.places, streams_BN)
    if config.mtp_layers:
        with jax.named_scope("absorb"):
            plane = family.draft_plane(cache, config)
            plane = family.absorb_rows(params, config, shards, plane, rows, before, pages_LP, page)
            cache = family.with_draft_plane(cache, config, plane)
    return LaneState(cache=cache, streams_LRN=recent), streams_BN


def run_absorb(
    family: Family,
    config: Any,
    shards: Any,
    page: int,
    params: Any,
    plane: Any,
    streams_LRN: Float[Array, "L R N"],
    rows: Rows,
    pages_LP: Int[Array, "L P"],
) -> Any:
    """Takes in the pairs of rows that ran, while the ring still holds the streams before them. Returns the plane."""
    before = read_taps(streams_LRN, rows.places.lane_B, rows.places.position_B, taps=2, dilation=1)[:, 0]
    return family.absorb_rows(params, config, shards, plane, rows, before, pages_LP, page)


def run_logits(family: Family, config: Any, shards: Any, params: Any, streams_BN: jax.Array) -> jax.Array:
    """Final mixer and head: this rank's slice of the logits."""
    return family.head_logits(params, config, shards, family.final_hidden(params, config, streams_BN))


def deal_columns(values_BV: np.ndarray, slices: Slices, mesh: Mesh) -> jax.Array:
    """Places each rank's columns of a host array over the vocabulary, as the logits are dealt."""
    return place_dealt(slices.parts(values_BV), mesh)


def deal_adjustments(adjustments: Adjustments, slices: Slices, mesh: Mesh) -> Adjustments:
    """Places adjustments: of what lies over the vocabulary, a rank gets its own columns only."""
    return replace(
        adjustments, **{name: deal_columns(getattr(adjustments, name), slices, mesh) for name in OVER_VOCABULARY}
    )


def programs(
    family: Family, config: Any, shards: Any, mesh: Mesh, page: int, layered: bool, draft_blocks: int | None
) -> Programs:
    """Binds the static facts; each program compiles on its first call.

    draft_blocks: blocks of 128 ids that drafts are drawn from, the first so many; None: all.
    layered: `rows` drives the layers one by one, which compiles a kind of layer once, and `draft` one draft after the
      other; else each is one program.
    """
    slices, draft_slices = family.vocabulary_slices(config, shards), family.draft_slices(config, shards, draft_blocks)
    same, dealt = lambda *layouts: SAME, lambda *layouts: DEALT if mesh.size > 1 else SAME
    logits = on_ranks(partial(run_logits, family, config, shards), mesh, dealt)
    draw = on_ranks(partial(sampling.draw, slices=slices), mesh, same)
    draw_adjusted = on_ranks(partial(sampling.draw_adjusted, slices=slices), mesh, same)
    if layered:
        layers = layered_programs(config, shards, mesh, page)
        drafter = stepped_drafter(family, config, shards, mesh, layers, draft_slices, logits, draw, draw_adjusted)
        rows, owes, draft = layers.run_rows, layers.owes, drafter.run
    else:
        owes = lambda height: False  # noqa: E731
        rows = on_ranks(
            partial(run_rows, family, config, shards, page),
            mesh,
            lambda params, state, *rest: (state, SAME),
            donate=(1,),
        )
        chain = Drafter(family, config, shards, page, draft_slices).run
        chain = on_ranks(chain, mesh, lambda params, plane, *rest: (plane, SAME), donate=(1,))
        draft = lambda params, *rest: chain(family.draft_params(params), *rest)  # noqa: E731
    absorb = on_ranks(
        partial(run_absorb, family, config, shards, page), mesh, lambda params, plane, *rest: plane, donate=(1,)
    )
    return Programs(
        rows=rows,
        owes=owes,
        absorb=lambda params, *rest: absorb(family.draft_params(params), *rest),
        tile=on_ranks(lambda streams, first: jax.lax.dynamic_slice_in_dim(streams, first, ROW_TILE), mesh, same),
        logits=logits,
        whole=on_ranks(lambda logits: family.whole_logits(logits, config, shards), mesh, same),
        commit=on_ranks(
            partial(state.commit, family, config, shards), mesh, lambda params, state, length: state, donate=(1,)
        ),
        draw=draw,
        draw_adjusted=draw_adjusted,
        logprobs=on_ranks(
            lambda logits, target: row_logprobs(logits, target, LOGPROBS_MOST, slices=slices), mesh, same
        ),
        finite=on_ranks(partial(sampling.finite_rows, slices=slices), mesh, same),
        draft=draft,
    )
