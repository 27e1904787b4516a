"""Host side: what no comparison of runs can show, since all of them would agree: ties and roundings, by definition.

The functions that the product calls, on inputs that are full of ties, against a few lines of NumPy.
"""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnx_jax.families.flash_next import moe
from fnx_jax.families.flash_next.sparse_attention import op
from fnx_jax.lanes import sampling
from fnx_jax.lanes.scaled import DrawParams
from pallas_kernels.norms import reference as norms

ROWS = 16


def router_picks() -> str | None:
    """Picks of rows whose experts tie in pairs: small integers, so that every product is exact."""
    rng, experts, active = np.random.default_rng(0), 24, 5
    x_BD = rng.integers(-3, 4, (ROWS, 32)).astype(np.float32)
    gate_ED = np.repeat(rng.integers(-2, 3, (experts // 2, 32)), 2, axis=0).astype(np.float32) / 16
    config: Any = SimpleNamespace(active_experts=active, normalise_picks=True, experts=experts)
    params: Any = SimpleNamespace(router=jnp.asarray(gate_ED))
    picks = jax.jit(lambda x: moe.route_rows(x, params, config, jnp.ones(ROWS, bool)).expert_BA)(x_BD)
    best_BA = np.argsort(-(x_BD @ gate_ED.T), axis=1, kind="stable")[:, :active]
    return _parting("router", np.asarray(picks), np.sort(best_BA, axis=1))


def kept_blocks() -> str | None:
    """Blocks kept among scores of few values."""
    rng, blocks, keep = np.random.default_rng(1), 40, 6
    seen_B = rng.integers(keep + 1, blocks + 1, ROWS).astype(np.int32)
    score_BN = np.where(np.arange(blocks) < seen_B[:, None], rng.integers(0, 4, (ROWS, blocks)), -1).astype(np.float32)
    kept_BK, _ = jax.jit(lambda score, seen: op.keep_blocks(score, seen, keep))(score_BN, seen_B)
    best_BK = np.argsort(-score_BN, axis=1, kind="stable")[:, :keep]
    return _parting("block selection", np.asarray(kept_BK), np.sort(best_BK, axis=1))


def drawn_ties() -> str | None:
    """Greedy draws from logits whose largest value stands in several places."""
    logits_BV = np.random.default_rng(2).integers(0, 5, (ROWS, 300)).astype(np.float32)
    token_B = _draw(logits_BV, _params(temperature=0.0), sampling.CANDIDATES)
    return _parting("greedy draw", token_B, logits_BV.argmax(axis=1))


def widened_draws() -> str | None:
    """Seeded draws that keep more ids than are sorted at first, against the same with all of them sorted."""
    logits_BV = np.random.default_rng(3).standard_normal((ROWS, 300)).astype(np.float32)
    params = _params(temperature=3.0, top_p=0.95)
    few, whole = (_draw(logits_BV, params, candidates) for candidates in (8, logits_BV.shape[1]))
    return _parting("draw among 8 candidates and more", few, whole)


def expert_sums() -> str | None:
    """The expert sum of random outputs against the tree written out."""
    rng, experts, leaves, active, width = np.random.default_rng(4), 64, 16, 10, 32
    out_BAD = rng.standard_normal((ROWS, active, width)).astype(np.float32)
    weight_BA = rng.random((ROWS, active), np.float32)
    expert_BA = np.sort(np.stack([rng.permutation(experts)[:active] for _ in range(ROWS)]), axis=1).astype(np.int32)
    shared_BD = rng.standard_normal((ROWS, width)).astype(np.float32)
    combine = jax.jit(lambda out, weight, expert, shared: moe.combine(out, weight, expert, shared, experts, leaves))
    found = combine(out_BAD, weight_BA, expert_BA, shared_BD)
    total = np.zeros((ROWS, leaves, width), np.float32)
    for row in range(ROWS):
        for slot in range(active):
            product = weight_BA[row, slot] * out_BAD[row, slot]
            total[row, expert_BA[row, slot] // (experts // leaves)] += product
    total[:, -1] += shared_BD
    while total.shape[1] > 1:
        total = total[:, 0::2] + total[:, 1::2]
    return _parting("expert sum", np.asarray(found), total[:, 0])


def norm_sums() -> str | None:
    """Norms of random rows against squares added by halves, written out."""
    width, eps = 96, 1e-6
    x_BD = np.random.default_rng(5).standard_normal((4 * ROWS, width)).astype(np.float32)
    half_BD = np.pad(x_BD * x_BD, [(0, 0), (0, 128 - width)])
    while half_BD.shape[1] > 1:
        low, high = np.split(half_BD, 2, axis=1)
        half_BD = low + high
    wanted = jax.jit(lambda total: jax.lax.rsqrt(total / jnp.float32(width) + jnp.float32(eps)))(half_BD)
    found = jax.jit(lambda x: norms.inverse_rms(x, eps))(x_BD)
    return _parting("norm", np.asarray(found), np.asarray(wanted))


def _draw(logits_BV: np.ndarray, params: DrawParams, candidates: int) -> np.ndarray:
    valid_V = jnp.ones(logits_BV.shape[1], bool)
    return np.asarray(
        jax.jit(lambda logits: sampling.draw(logits, valid_V, params, candidates=candidates)[0])(logits_BV)
    )


def _params(temperature: float, top_p: float = 1.0) -> DrawParams:
    rows = np.arange(ROWS, dtype=np.int32)
    return DrawParams(
        seed_B2=np.stack([rows, rows], axis=1).astype(np.uint32),
        choice_B=rows * 0,
        position_B=rows,
        temperature_B=np.full(ROWS, temperature, np.float32),
        top_k_B=rows * 0,
        top_p_B=np.full(ROWS, top_p, np.float32),
        min_p_B=np.zeros(ROWS, np.float32),
    )


def _parting(what: str, found: np.ndarray, wanted: np.ndarray) -> str | None:
    unequal = np.argwhere(found != wanted)
    if not len(unequal):
        return None
    at = tuple(map(int, unequal[0]))
    return f"{what}: {len(unequal)} of {found.size} entries differ, first {list(at)}: {found[at]!s}, not {wanted[at]!s}"
