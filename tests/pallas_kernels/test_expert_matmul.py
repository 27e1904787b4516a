"""Routed experts: how rows are grouped, and outputs with the bits of each expert alone, wherever its lines lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.dense_matmul import linear
from pallas_kernels.exl3 import DecodedWeight, decoded
from pallas_kernels.expert_matmul import ExpertLines, LineMap, expert_matmul, resident_map
from pallas_kernels.expert_matmul.grouping import group_rows
from pallas_kernels.expert_matmul.shapes import SMALL_SHAPES
from pallas_kernels.row_tiles import ROW_TILE
from tests.sweep.case import unequal
from tests.sweep.dense_cases import packed

SHAPE = SMALL_SHAPES["small"]
E, A, D, F = SHAPE.experts, SHAPE.active, SHAPE.hidden, SHAPE.ffn
ROWS = np.random.default_rng(0).standard_normal((40, D)).astype(np.float32)
BITS = np.array([[3, 4, 3, 3, 4, 3], [4] * E, [2, 2, 5, 2, 5, 5]])
SIZES = ((D, F), (D, F), (F, D))


def picks(name: str) -> np.ndarray:
    """[40, A] ids, ascending in a row."""
    rng = np.random.default_rng(1)
    chosen = {
        "mixed": np.stack([rng.permutation(E)[:A] for _ in range(40)]),
        "all on one": np.stack([np.full(40, 2), np.full(40, E)], axis=1),
        "every expert beyond a tile": np.stack([np.arange(40) % 2, 2 + np.arange(40) % 2], axis=1),
        "none": np.full((40, A), E),
        "one row": np.where(np.arange(40)[:, None] == 7, [1, 4], E),
    }
    return np.sort(chosen[name], axis=1).astype(np.int32)


PICKS = ("mixed", "all on one", "every expert beyond a tile", "none", "one row")


@pytest.fixture(scope="module")
def layers():
    """[projection][expert]: packed weights of two widths in the first and the last projection."""
    return [[packed(10 * p + e, *size, int(BITS[p, e])) for e in range(E)] for p, size in enumerate(SIZES)]


def pooled(layers, order: np.ndarray, unpack: bool) -> tuple[ExpertLines, LineMap]:
    """The layers in one pool a width, experts dealt to lines in `order`."""
    pools, pool_PE, line_PE = [], np.zeros((3, E), np.int32), np.zeros((3, E), np.int32)
    for p, weights in enumerate(layers):
        widths = np.unique(BITS[p])
        members = [[e for e in order if BITS[p, e] == width] for width in widths]
        for index, experts in enumerate(members):
            pool_PE[p, experts], line_PE[p, experts] = index, np.arange(len(experts))
        chosen = [[decoded(weights[e]) if unpack else weights[e] for e in experts] for experts in members]
        pools.append(tuple(jax.tree.map(lambda *leaves: np.stack(leaves), *lines) for lines in chosen))
    return ExpertLines(*pools), resident_map(jnp.asarray(pool_PE), jnp.asarray(line_PE))


@jax.jit
def run(x: jax.Array, expert: jax.Array, lines: ExpertLines, line_map: LineMap) -> jax.Array:
    return expert_matmul(x, expert, lines, line_map, F)


@jax.jit
def alone(x: jax.Array, gate, up, down) -> jax.Array:
    return linear(jax.nn.silu(linear(x, gate)) * linear(x, up), down)


def each_alone(layers, expert_BA: np.ndarray) -> np.ndarray:
    """Each output from its expert's decoded layers alone; zeros where there is no expert."""
    every = np.stack([alone(ROWS, *(decoded(weights[e]) for weights in layers)) for e in range(E)])
    every = np.concatenate([every, np.zeros_like(every[:1])])
    return every[expert_BA, np.arange(len(expert_BA))[:, None]]


@pytest.mark.parametrize("name", PICKS)
def test_groups_hold_every_pair_once_expert_by_expert(name):
    expert = picks(name)
    groups = jax.device_get(jax.jit(group_rows, static_argnums=1)(expert, E))
    count = int(groups.count)
    assert (groups.tile_pair[count:] == -1).all()
    used = groups.tile_pair[:count]
    for e, pairs in zip(groups.tile_expert[:count], used, strict=True):
        assert (expert.reshape(-1)[pairs[pairs >= 0]] == e).all() and pairs[0] >= 0
    listed = used[used >= 0]
    assert sorted(listed) == np.flatnonzero(expert.reshape(-1) < E).tolist()
    hit = np.bincount(expert.reshape(-1), minlength=E + 1)[:E]
    assert count == (-(-hit // ROW_TILE)).sum()


@pytest.mark.parametrize("unpack", [True, False], ids=["decoded", "packed"])
@pytest.mark.parametrize("name", PICKS)
def test_outputs_have_the_bits_of_each_expert_alone(name, unpack, layers):
    lines, line_map = pooled(layers, np.array([4, 0, 5, 2, 1, 3]), unpack)
    assert len(lines.gate) == len(lines.down) == 2
    assert isinstance(lines.gate[0], DecodedWeight) == unpack
    assert unequal(run(ROWS, picks(name), lines, line_map), each_alone(layers, picks(name))) == 0


def test_a_map_that_names_other_lines_is_told_apart(layers):
    lines, line_map = pooled(layers, np.array([4, 0, 5, 2, 1, 3]), True)
    _, stale = pooled(layers, np.arange(E), True)
    assert unequal(run(ROWS, picks("mixed"), lines, stale), run(ROWS, picks("mixed"), lines, line_map))


def test_rows_of_nan_reach_only_their_own_outputs(layers):
    lines, line_map = pooled(layers, np.arange(E), True)
    poisoned = ROWS.copy()
    poisoned[1::3] = np.nan
    expert = picks("every expert beyond a tile")
    found, wanted = np.array(run(poisoned, expert, lines, line_map)), np.array(run(ROWS, expert, lines, line_map))
    assert np.isnan(found[1::3]).all()
    kept = np.delete(np.arange(40), np.s_[1::3])
    assert unequal(found[kept], wanted[kept]) == 0
