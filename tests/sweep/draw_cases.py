"""Case of the sweep: the draw as a whole, with what it is decided by, and the report of log-probabilities."""

from functools import cache
from typing import Any

import jax
import numpy as np

from fnx_jax.lanes.kept import kept_candidates
from fnx_jax.lanes.logprobs import row_logprobs
from fnx_jax.lanes.sampling import DrawParams, draw, scale
from tests.sweep.case import ROWS, TILES, Case, Tree, tiles

V, CANDIDATES, TOP = 300, 16, 5
KINDS = np.array(
    [
        (0.0, 0, 1.0, 0.0),
        (1.0, 0, 1.0, 0.0),
        (0.7, 0, 1.0, 0.05),
        (1.3, 5, 1.0, 0.0),
        (1.0, 20, 0.9, 0.0),
        (1.0, 0, 0.5, 0.0),
        (9.0, 0, 0.95, 0.0),
        (3.0, 40, 0.99, 0.01),
    ],
    np.float32,
)
"""temperature, top_k, top_p, min_p: greedy, unfiltered, filtered within the list, and wider than it."""


def drawn(tile: Tree, valid: jax.Array) -> Any:
    """Tokens of a tile, the scaled logits, the list of candidates and the log-probability of the token."""
    logits, params = tile
    token, finite = draw(logits, valid, params, candidates=CANDIDATES)
    scaled = scale(logits, valid, params)
    decided_by = scaled.z_BV, scaled.floor_B, kept_candidates(scaled, params, CANDIDATES)
    return token, finite, decided_by, row_logprobs(logits, token, TOP)


@cache
def cases() -> dict[str, Case]:
    """Rows of all kinds in a tile."""
    rng = np.random.default_rng(1)
    kinds = np.broadcast_to(np.tile(KINDS, (ROWS // len(KINDS), 1)), (TILES, ROWS, 4))
    params = DrawParams(
        seed_B2=rng.integers(0, 1 << 32, (TILES, ROWS, 2), dtype=np.uint64).astype(np.uint32),
        choice_B=rng.integers(0, 4, (TILES, ROWS)).astype(np.int32),
        position_B=rng.integers(0, 1 << 20, (TILES, ROWS)).astype(np.int32),
        temperature_B=kinds[..., 0].copy(),
        top_k_B=kinds[..., 1].astype(np.int32),
        top_p_B=kinds[..., 2].copy(),
        min_p_B=kinds[..., 3].copy(),
    )
    return {"draw": Case(drawn, (tiles(2, V, scale=2), params), rng.random(V) < 0.95)}
