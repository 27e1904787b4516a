"""Host side: rounds written by hand on tiny models, and their raw logits. Read next: streams.py."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

import fnx_jax
from fnx_jax.engine.steps import RoundPlan
from fnx_jax.families.history import token_history
from fnx_jax.lanes.rounds import DeviceSteps
from fnx_jax.lanes.state import empty_state
from fnx_jax.lanes.tiles import cut

GOLDEN = Path(__file__).parents[3] / "tests" / "golden"
LANES, CONTEXT = 4, 128


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) of a lane's tokens; those from `certain` on, where given, are under test."""

    lane: int
    token_T: Int[np.ndarray, " T"]
    start: int
    stop: int
    certain: int | None = None


def tiny_steps(name: str, devices: int = 1) -> DeviceSteps:
    """A recurrent layer with n-grams and an attention layer of a tiny checkpoint, in float32 arithmetic.

    Programs and lanes are new. Two layers hold every part of the network and compile in half the time of all.
    """
    whole = fnx_jax.load(
        GOLDEN / name, devices=devices, dtype="float32", lanes=LANES, context=CONTEXT, draft_head=False
    ).steps
    device, config = whole.device, whole.device.config
    kept = config.ngram_layers[0], config.layer_kinds.index("attention")
    short = replace(config, layer_kinds=tuple(config.layer_kinds[layer] for layer in kept), ngram_layers=(0,))
    params = replace(device.params, layers=tuple(device.params.layers[layer] for layer in kept))
    state = empty_state(
        device.family, short, device.shards, LANES, whole.pages, whole.page, jnp.dtype(jnp.float32), device.mesh
    )
    return replace(whole, device=replace(device, config=short, params=params), state=state)


def prompts(steps: DeviceSteps, count: int, rows: int, seed: int) -> list[Int[np.ndarray, " T"]]:
    """Ordinary ids, `rows` of them in each."""
    rng = np.random.default_rng(seed)
    return [rng.integers(10, steps.vocabulary, rows).astype(np.int32) for _ in range(count)]


def run(steps: DeviceSteps, pieces: Sequence[Piece]) -> Float[np.ndarray, "B V"]:
    """Runs pieces in one round; returns the raw logits of all their rows, in their order."""
    plan = round_plan(steps, pieces)
    embeddings = steps.device.ngrams.embeddings(plan.token_B, plan.history_BN)
    logits = []
    for tile in cut(plan):
        streams = steps.run_tile(plan, tile, embeddings)
        slices = steps.programs.logits(steps.device.params, streams)
        logits.append(np.asarray(steps.programs.whole(slices))[: tile.live])
    return np.concatenate(logits)


def round_plan(steps: DeviceSteps, pieces: Sequence[Piece]) -> RoundPlan:
    """A round of these pieces, nothing drawn. Pages of a lane are scattered over the pool."""
    per_lane = -(-steps.context // steps.page)
    position = [np.arange(piece.start, piece.stop, dtype=np.int32) for piece in pieces]
    border = [piece.stop if piece.certain is None else piece.certain for piece in pieces]
    return RoundPlan(
        token_B=np.concatenate([piece.token_T[piece.start : piece.stop] for piece in pieces]).astype(np.int32),
        lane_B=np.concatenate(
            [np.full(len(p), piece.lane, np.int32) for p, piece in zip(position, pieces, strict=True)]
        ),
        position_B=np.concatenate(position),
        speculative_B=np.concatenate([p >= b for p, b in zip(position, border, strict=True)]),
        history_BN=np.concatenate(
            [token_history(piece.token_T, steps.history)[piece.start : piece.stop] for piece in pieces]
        ),
        pages_LP=np.arange(steps.lanes * per_lane, dtype=np.int32).reshape(per_lane, steps.lanes).T.copy(),
    )


def spoil(steps: DeviceSteps) -> None:
    """Fills every float leaf of the lanes with NaN, as another request might have left them."""

    def spoiled(leaf: jax.Array) -> jax.Array:
        if not np.issubdtype(leaf.dtype, np.floating):
            return leaf
        return jax.device_put(np.full(leaf.shape, np.nan, leaf.dtype), leaf.sharding)

    steps.state = jax.tree.map(spoiled, steps.state)


def difference(claim: str, found_BV: np.ndarray, wanted_BV: np.ndarray, start: int) -> str | None:
    """The first position whose logits differ in a bit, in words; row 0 is position `start`."""
    unequal_BV = found_BV.view(np.uint32) != wanted_BV.view(np.uint32)
    if not unequal_BV.any():
        return None
    row = int(np.flatnonzero(unequal_BV.any(axis=1))[0])
    gap = float(np.abs(found_BV[row] - wanted_BV[row]).max())
    ids = int(unequal_BV[row].sum())
    return f"{claim}: position {start + row}, {ids} of {found_BV.shape[1]} logits differ, by {gap:.1e} at most"
