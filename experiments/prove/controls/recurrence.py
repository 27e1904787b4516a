"""Traced: wrong twins of the recurrent layers and of what they keep between rows. Read next: attention.py."""

from dataclasses import replace

import jax.numpy as jnp

from experiments.prove.controls.commits import commits
from experiments.prove.controls.control import Control, Plant, planted
from experiments.prove.controls.streams import streams
from fnx_jax.families.flash_next import gated_delta as block
from fnx_jax.lanes import layered, rounds, state
from pallas_kernels.gated_delta import op as delta
from pallas_kernels.gated_delta.rows import RowPlaces
from pallas_kernels.ngram_mix import op as ngram

TAPS, WRITE_RING, FOLD, ROWS = delta.read_taps, delta.write_ring, delta.fold, block.gated_delta_rows
COMMIT, FOLDED_AFTER = state.commit, layered.folded_after


def taps_of_this_tile(ring_LRC, lane_B, position_B, taps, dilation):
    """A convolution that sees only rows of the tile at hand: what lies behind its first row counts as zero."""
    found_BTC = TAPS(ring_LRC, lane_B, position_B, taps, dilation)
    wanted_BT = position_B[:, None] - jnp.arange(taps - 1, -1, -1, dtype=jnp.int32)[None, :] * dilation
    same = (lane_B[:, None, None] == lane_B[None, None]) & (wanted_BT[:, :, None] == position_B[None, None])
    return jnp.where(same.any(axis=2)[:, :, None], found_BTC, jnp.float32(0))


def ring_by_row(ring_LRC, places: RowPlaces, rows_BC):
    """Stores rows at their place in the tile instead of their position."""
    rows_B = jnp.arange(places.lane_B.shape[0], dtype=jnp.int32)
    return WRITE_RING(ring_LRC, replace(places, position_B=rows_B), rows_BC)


def fold_onto_the_old(state, folded_L, target_L, weights, sizes):
    """A stream that starts at row 0 begins from the state that its lane's last stream left."""
    folded = FOLD(state, folded_L, target_L, weights, sizes)
    return replace(folded, committed=jnp.where((target_L == 0)[:, None, None, None], state.committed, folded.committed))


def rows_all_kept(state, folded_L, places, *rest):
    """The committed state takes in drafts as well, and then takes the accepted ones in again."""
    return ROWS(state, folded_L, replace(places, speculative_B=jnp.zeros_like(places.speculative_B)), *rest)


def places_all_certain(lane_B, position_B, live_B, speculative_B):
    """Every row that was scheduled counts as accepted."""
    return RowPlaces(lane_B, position_B, live_B, speculative_B & False)


def commit_uncounted(family, config, shards, params, lanes, length_L):
    """Takes accepted rows in, and leaves the count of rows taken in where it was."""
    after = COMMIT(family, config, shards, params, lanes, length_L)
    return replace(after, cache=replace(after.cache, folded=lanes.cache.folded))


def folded_to_the_last(folded_L, places):
    """Counts the whole window as taken in, though the state stands at the last certain row."""
    return FOLDED_AFTER(folded_L, replace(places, speculative_B=jnp.zeros_like(places.speculative_B)))


CONTROLS: tuple[Control, ...] = (
    planted(
        "convolution_tail_dropped",
        "3.4",
        "the recurrent layers' convolution forgets the rows before a chunk",
        streams,
        Plant(delta, "read_taps", taps_of_this_tile),
    ),
    planted(
        "ngram_convolution_tail_dropped",
        "4",
        "the n-gram layer's convolution forgets the rows before a chunk",
        streams,
        Plant(ngram, "read_taps", taps_of_this_tile),
    ),
    planted(
        "ring_by_row",
        "3.3",
        "rows of a ring lie at their place in the tile, not at their absolute position",
        streams,
        Plant(delta, "write_ring", ring_by_row),
    ),
    planted(
        "state_not_emptied",
        "4",
        "a stream starts from the recurrent state that its lane's last one left",
        streams,
        Plant(delta, "fold", fold_onto_the_old),
    ),
    planted(
        "state_at_the_scheduled_length",
        "4",
        "drafts under test are committed as if they were accepted",
        streams,
        Plant(rounds, "RowPlaces", places_all_certain),
    ),
    planted(
        "draft_state_kept",
        "4",
        "the committed state walks on over drafts, and the accepted ones are replayed onto it",
        streams,
        Plant(block, "gated_delta_rows", rows_all_kept),
    ),
    planted(
        "replay_skipped",
        "4",
        "accepted drafts are counted as taken into the state, and never are",
        streams,
        Plant(layered, "folded_after", folded_to_the_last),
    ),
    planted(
        "committed_twice",
        "4",
        "a commit that is not counted: the next round takes the same rows in again",
        commits,
        Plant(state, "commit", commit_uncounted),
    ),
)
