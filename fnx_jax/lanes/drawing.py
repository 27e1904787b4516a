"""Host side: queues what is drawn and scored of a tile's rows; nothing here waits. Read next: results.py."""

import jax

from fnx_jax.lanes.device import Device
from fnx_jax.lanes.programs import Programs, deal_adjustments
from fnx_jax.lanes.results import TileResult
from fnx_jax.lanes.scaled import Adjustments
from fnx_jax.lanes.tiles import Tile, adjustments, draw_params, is_adjusted, targets


def queue_results(device: Device, programs: Programs, tile: Tile, streams: jax.Array) -> TileResult:
    """Queues a tile's draws and scores. streams: its rows' last ones."""
    result, logits = TileResult(tile), programs.logits(device.params, streams)
    if tile.draws:
        _queue_draws(device, programs, tile, logits, result)
    if tile.scores:
        target = targets(tile, [(score.row, score.target) for score in tile.scores])
        result.score_logprobs = programs.logprobs(logits, target)
        result.finite = programs.finite(logits)
    return result


def tile_adjustments(device: Device, tile: Tile) -> Adjustments:
    """Adjustments of a tile's draws, dealt as its logits are."""
    slices = device.family.vocabulary_slices(device.config, device.shards)
    return deal_adjustments(adjustments(tile, device.config.vocabulary), slices, device.mesh)


def _queue_draws(device: Device, programs: Programs, tile: Tile, logits: jax.Array, result: TileResult) -> None:
    arguments = (logits, device.valid_V, draw_params(tile))
    if any(map(is_adjusted, tile.draws)):
        drawn = programs.draw_adjusted(*arguments, tile_adjustments(device, tile))
    else:
        drawn = programs.draw(*arguments)
    result.token, result.drawn_finite = drawn
    if any(draw.logprobs is not None for draw in tile.draws):
        result.drawn_logprobs = programs.logprobs(logits, result.token)
