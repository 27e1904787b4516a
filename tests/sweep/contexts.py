"""The programs that ops are put in, and what each must give: the bits of the op compiled alone, tile by tile.

A context takes cases and returns, for each, results and what they should equal. One context is one compiled program,
whatever the number of cases.
"""

from collections.abc import Callable
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from tests.sweep.case import ROWS, TILES, Case, Cases, Tree
from tests.sweep.intermediates import with_intermediates

Compared = dict[str, list[tuple[Tree, Tree]]]
"""Per case: pairs of what a context gave and what the op alone gives."""


@cache
def alone(case: Case) -> list[Tree]:
    """Each tile's result from the op compiled alone, on the host."""
    program = jax.jit(case.function)
    return [jax.device_get(program(case.tile(i), case.shared)) for i in range(TILES)]


def stacked(case: Case, count: int = TILES) -> Tree:
    """The first `count` tiles' results alone, with a tile axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *alone(case)[:count])


def flat(case: Case, rows: int) -> Tree:
    """The first `rows` rows of the results alone."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:rows], stacked(case))


def _run(cases: Cases, program: Callable[[dict, dict], dict], data: dict) -> dict:
    shared = {name: case.shared for name, case in cases.items()}
    return jax.device_get(jax.jit(program)(data, shared))


def extra_outputs(cases: Cases, every: int) -> Compared:
    """Intermediate values, every one or every third, are returned beside the result."""

    def program(data: dict, shared: dict) -> dict:
        return {n: with_intermediates(c.function, every, data[n], shared[n]) for n, c in cases.items()}

    found = _run(cases, program, {name: case.tile(0) for name, case in cases.items()})
    return {name: [(found[name][0], alone(case)[0])] for name, case in cases.items()}


def scan(cases: Cases) -> Compared:
    """The tiles are the steps of one scan."""

    def program(data: dict, shared: dict) -> dict:
        def step(carry: None, tile: dict) -> tuple[None, dict]:
            return carry, {n: c.function(tile[n], shared[n]) for n, c in cases.items()}

        return jax.lax.scan(step, None, data)[1]

    found = _run(cases, program, {name: case.data for name, case in cases.items()})
    return {name: [(found[name], stacked(case))] for name, case in cases.items()}


def unrolled(cases: Cases) -> Compared:
    """Two tiles in one program that share their weights."""

    def program(data: dict, shared: dict) -> dict:
        return {n: [c.function(tile, shared[n]) for tile in data[n]] for n, c in cases.items()}

    found = _run(cases, program, {name: [case.tile(0), case.tile(1)] for name, case in cases.items()})
    return {name: list(zip(found[name], alone(case), strict=False)) for name, case in cases.items()}


def loop(cases: Cases) -> Compared:
    """A loop over 1, 2 and 5 tiles of one buffer, its trip count known at run time only."""

    @jax.jit
    def program(data: dict, shared: dict, count: jax.Array) -> dict:
        def step(i: jax.Array, out: dict) -> dict:
            tile = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False), data)
            found = {n: c.function(tile[n], shared[n]) for n, c in cases.items()}
            return jax.tree.map(lambda all_, one: all_.at[i].set(one), out, found)

        return jax.lax.fori_loop(0, count, step, empty)

    data = {name: case.data for name, case in cases.items()}
    shared = {name: case.shared for name, case in cases.items()}
    empty = {name: jax.tree.map(np.zeros_like, stacked(case)) for name, case in cases.items()}
    compared: Compared = {name: [] for name in cases}
    for count in (1, 2, TILES):
        found = jax.device_get(program(data, shared, np.int32(count)))
        for name, case in cases.items():
            compared[name].append((jax.tree.map(lambda leaf, n=count: leaf[:n], found[name]), stacked(case, count)))
    return compared


def row_counts(cases: Cases, counts: tuple[int, ...]) -> Compared:
    """The op over other numbers of rows at once, several numbers in one program."""
    cases = {name: case for name, case in cases.items() if case.rowwise}

    def program(data: dict, shared: dict) -> dict:
        return {n: [c.function(rows, shared[n]) for rows in data[n]] for n, c in cases.items()}

    found = _run(cases, program, {name: [case.rows(count) for count in counts] for name, case in cases.items()})
    return {
        name: [(rows, flat(case, count)) for rows, count in zip(found[name], counts, strict=True)]
        for name, case in cases.items()
    }


def fused(cases: Cases) -> Compared:
    """The op behind gathers and elementwise steps that change no bit, weights read from a stack; sums and products after it."""
    order = np.random.default_rng(0).permutation(ROWS).astype(np.int32)
    dynamic = {"order": order, "one": np.float32(1), "zero": np.float32(0), "layer": np.int32(1), "yes": np.ones(ROWS, bool)}

    def program(data: dict, shared: dict, given: dict) -> dict:
        return {n: _between(c, data[n], shared[n], given) for n, c in cases.items()}

    shuffled = {n: jax.tree.map(lambda leaf: _unordered(leaf, order), c.tile(0)) for n, c in cases.items()}
    shared = {n: jax.tree.map(lambda leaf: np.stack([np.zeros_like(leaf), leaf]), c.shared) for n, c in cases.items()}
    found = jax.device_get(jax.jit(program)(shuffled, shared, dynamic))
    return {name: [(found[name], _after(alone(case)[0], np, np.float32(0.3)))] for name, case in cases.items()}


def _between(case: Case, shuffled: Tree, shared: Tree, given: dict) -> Tree:
    def restored(leaf: jax.Array) -> jax.Array:
        value = leaf[given["order"]] if leaf.shape[:1] == (ROWS,) else leaf
        if value.dtype != jnp.float32:
            return value
        if value.shape[:1] == (ROWS,):
            value = jnp.where(given["yes"].reshape(-1, *(1,) * (value.ndim - 1)), value, jnp.float32(7))
        return value * given["one"] - given["zero"]

    weights = jax.tree.map(lambda leaf: leaf[given["layer"]], shared)
    result = case.function(jax.tree.map(restored, shuffled), weights)
    return _after(result, jnp, jnp.float32(0.3) * given["one"])


def _unordered(leaf: np.ndarray, order: np.ndarray) -> np.ndarray:
    if leaf.shape[:1] != (ROWS,):
        return leaf
    out = np.empty_like(leaf)
    out[order] = leaf
    return out


def _after(result: Tree, library, offset) -> Tree:
    """What elementwise steps make of the result: IEEE says what a lone sum, difference or product is."""

    def steps(leaf):
        return [leaf + offset, offset - leaf, leaf * offset] if leaf.dtype == np.float32 else [leaf]

    return jax.tree.map(steps, result)


def replicated(cases: Cases) -> Compared:
    """The op on two devices that hold the same rows."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("devices",))
    everywhere = PartitionSpec()

    def program(data: dict, shared: dict) -> dict:
        one = lambda data, shared: {n: c.function(data[n], shared[n]) for n, c in cases.items()}  # noqa: E731
        specs = {"mesh": mesh, "in_specs": everywhere, "out_specs": everywhere, "check_vma": False}
        return jax.shard_map(one, **specs)(data, shared)

    found = _run(cases, program, {name: case.tile(0) for name, case in cases.items()})
    return {name: [(found[name], alone(case)[0])] for name, case in cases.items()}


CONTEXTS: dict[str, Callable[[Cases], Compared]] = {
    "all_intermediates_returned": partial(extra_outputs, every=1),
    "some_intermediates_returned": partial(extra_outputs, every=3),
    "scan": scan,
    "unrolled": unrolled,
    "loop_of_tiles": loop,
    "few_rows": partial(row_counts, counts=(1, 3)),
    "many_rows": partial(row_counts, counts=(32, 80)),
    "fused": fused,
    "two_devices": replicated,
}
