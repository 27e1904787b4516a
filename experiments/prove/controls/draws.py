"""Host and traced side: wrong twins of the draw's keys, parameters and order. Read next: host.py."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np

from experiments.prove.controls.control import Control, Plant, planted
from experiments.prove.controls.replies import replies
from fnx_jax.engine import plan
from fnx_jax.engine.lane import Lane
from fnx_jax.engine.plan import Segment
from fnx_jax.engine.steps import Draw
from fnx_jax.lanes import rounds
from fnx_jax.lanes.tiles import Tile

DRAW, DRAWS, DRAW_PARAMS = Lane.draw, plan._draws, rounds.draw_params


def keyed_by_row(tile: Tile):
    """Keys noise by the row's place in the tile."""
    params = DRAW_PARAMS(tile)
    return replace(params, position_B=np.arange(len(params.position_B), dtype=np.int32))


def keyed_by_counter() -> Callable[[Tile], object]:
    """Keys noise by a count of draws that goes from round to round."""
    numbers = count()

    def params_of(tile: Tile):
        params = DRAW_PARAMS(tile)
        return replace(params, position_B=np.full_like(params.position_B, next(numbers)))

    return params_of


def keyed_by_lane(lane: Lane, row: int, ahead=()) -> Draw:
    """Mixes the lane's number into the seed."""
    draw = DRAW(lane, row, ahead)
    return replace(draw, seed=draw.seed + lane.index)


def keyed_within_the_chunk(segment: Segment, first: int) -> list[Draw]:
    """Counts positions from the first row of the round."""
    return [replace(draw, position=draw.row - first) for draw in DRAWS(segment, first)]


def one_temperature(tile: Tile):
    """Draws every row of a tile at the highest temperature among them."""
    params = DRAW_PARAMS(tile)
    return replace(params, temperature_B=np.full_like(params.temperature_B, params.temperature_B.max()))


CONTROLS: tuple[Control, ...] = (
    planted(
        "noise_by_row",
        "3.6",
        "a draw's noise hangs on where its row lies in the tile",
        replies,
        Plant(rounds, "draw_params", keyed_by_row),
    ),
    planted(
        "noise_by_counter",
        "3.6",
        "a draw's noise hangs on how many draws came before",
        replies,
        Plant(rounds, "draw_params", keyed_by_counter()),
    ),
    planted(
        "noise_by_lane",
        "3.6",
        "a draw's noise hangs on the lane",
        replies,
        Plant(Lane, "draw", keyed_by_lane),
    ),
    planted(
        "noise_within_the_chunk",
        "3.6",
        "a draw's noise hangs on the position counted from the chunk's first row",
        replies,
        Plant(plan, "_draws", keyed_within_the_chunk),
    ),
    planted(
        "one_temperature_a_tile",
        "3.6",
        "the rows of a tile are drawn at one temperature",
        replies,
        Plant(rounds, "draw_params", one_temperature),
    ),
)
