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

TAPS, WRITE_RING, ROWS = delta.recent_taps, delta.write_ring, block.gated_delta_rows
COMMIT, FOLDED_AFTER = state.commit, layered.folded_after


def taps_of_these_rows(ring_LRC, places, rows_BC, taps, dilation):
    """A convolution that sees only the rows at hand: what lies behind a lane's first counts as zero."""
    return TAPS(jnp.zeros_like(ring_LRC), places, rows_BC, taps, dilation)


def ring_by_row(ring_LRC, places: RowPlaces, rows_BC):
    """Stores rows at their place in the tile instead of their position."""
    rows_B = jnp.arange(places.lane_B.shape[0], dtype=jnp.int32)
    return WRITE_RING(ring_LRC, replace(places, position_B=rows_B), rows_BC)


def rows_of_an_older_stream(state, folded_L, places, *rest):
    """A stream's row 0 goes on from what its lane's last stream left: every row counts as one of a later turn."""
    turn = state.ring.shape[1]
    return ROWS(state, folded_L + turn, replace(places, position_B=places.position_B + turn), *rest)


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
        Plant(delta, "recent_taps", taps_of_these_rows),
    ),
    planted(
        "ngram_convolution_tail_dropped",
        "4",
        "the n-gram layer's convolution forgets the rows before a chunk",
        streams,
        Plant(ngram, "recent_taps", taps_of_these_rows),
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
        Plant(block, "gated_delta_rows", rows_of_an_older_stream),
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
