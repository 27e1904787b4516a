"""Traced: wrong twins of matmuls, router and experts that a row's company reaches. Read next: sums.py."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from experiments.prove.controls.control import Control, Plant, planted
from experiments.prove.controls.heights import heights
from experiments.prove.controls.streams import streams
from fnx_jax.families.rows import Rows
from fnx_jax.lanes import rounds
from pallas_kernels.dense_matmul import op as dense
from pallas_kernels.expert_matmul import op as expert
from pallas_kernels.gated_delta import RowPlaces
from pallas_kernels.router import op as router
from pallas_kernels.tree_sum import tree_sum

TILE_MATMUL, GROUP_ROWS = dense.tile_matmul, expert.group_rows
CAPACITY = 4


def split_by_rows(x_BI, weight_OI):
    """Splits the contraction in two where the lower half of the tile has rows, as a kernel chosen by height would."""
    half = x_BI.shape[1] // 2

    def in_halves() -> jax.Array:
        return TILE_MATMUL(x_BI[:, :half], weight_OI[:, :half]) + TILE_MATMUL(x_BI[:, half:], weight_OI[:, half:])

    return jax.lax.cond(jnp.any(x_BI[8:] != 0), in_halves, lambda: TILE_MATMUL(x_BI, weight_OI))


def untiled(f, x_MK, outputs):
    """As many rows as there are, in one call."""
    return f(x_MK)


def run_live_rows(self, plan, tile, ngram_BLE):
    """Runs a tile at the height of its live rows."""
    rows = slice(tile.start, tile.start + tile.live)
    places = RowPlaces(plan.lane_B[rows], plan.position_B[rows], plan.token_B[rows] >= 0, plan.speculative_B[rows])
    with self._taking_over():
        self.state, streams = self.programs.rows(
            self.device.params, self.state, Rows(plan.token_B[rows], places, ngram_BLE[rows]), plan.pages_LP
        )
    return streams


def softmax_under_one_ceiling(logits_BE):
    """Subtracts the largest logit of the whole tile."""
    weight = jnp.exp(logits_BE - jnp.max(logits_BE))
    return weight * (jnp.float32(1) / tree_sum(weight))[:, None]


def groups_of_capacity(expert_BA, experts, height):
    """Drops what is asked of an expert beyond its capacity, the last rows first."""
    groups = GROUP_ROWS(expert_BA, experts, height)
    tile = jnp.arange(groups.tile_expert.shape[0])
    same = groups.tile_expert[:, None] == groups.tile_expert[None, :]
    earlier = jnp.sum(same & (tile[None, :] < tile[:, None]), axis=1)
    place = earlier[:, None] * height + jnp.arange(height)[None, :]
    return replace(groups, tile_pair=jnp.where(place < CAPACITY, groups.tile_pair, -1))


CONTROLS: tuple[Control, ...] = (
    planted(
        "untiled_matmul",
        "3.1",
        "a program has as many rows as are live, and a dot with it",
        heights,
        Plant(rounds.DeviceSteps, "run_tile", run_live_rows),
        Plant(dense, "row_dot", untiled),
    ),
    planted(
        "contraction_split_by_rows",
        "3.2",
        "a matmul splits its contraction by how many rows come along",
        streams,
        Plant(dense, "tile_matmul", split_by_rows),
    ),
    planted(
        "shared_ceiling",
        "3",
        "the router's softmax subtracts one maximum from all rows of the tile",
        streams,
        Plant(router, "softmax", softmax_under_one_ceiling),
    ),
    planted(
        "expert_capacity",
        "3",
        "an expert that many rows of a tile ask for drops some of them",
        streams,
        Plant(expert, "group_rows", groups_of_capacity),
    ),
)
