"""The programs that ops are put in, and what each must give: the bits of the op compiled alone, tile by tile.

A context takes cases and returns, for each, results and what they should equal. One context is one compiled program,
whatever the number of cases.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from tests.sweep.case import ROWS, TILES, Case, Cases, Tree, normal, program
from tests.sweep.intermediates import with_intermediates

Compared = dict[str, list[tuple[Tree, Tree]]]
"""Per case: pairs of what a context gave and what the op alone gives."""


@cache
def alone(case: Case) -> list[Tree]:
    """Each tile's result from the op compiled alone, on the host."""
    return [jax.device_get(program(case)(case.tile(i), case.shared)) for i in range(TILES)]


def stacked(case: Case, count: int = TILES) -> Tree:
    """The first `count` tiles' results alone, with a tile axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *alone(case)[:count])


def flat(case: Case, rows: int) -> Tree:
    """The first `rows` rows of the results alone."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:rows], stacked(case))


def weights(cases: Cases) -> dict[str, Tree]:
    """What each case shares among tiles."""
    return {name: case.shared for name, case in cases.items()}


def intermediates_returned(cases: Cases) -> Compared:
    """Values computed on the way are outputs too."""

    def together(data: dict, shared: dict) -> dict:
        return {name: with_intermediates(case.function, data[name], shared[name]) for name, case in cases.items()}

    found = jax.device_get(jax.jit(together)({name: case.tile(0) for name, case in cases.items()}, weights(cases)))
    return {name: [(found[name][0], alone(case)[0])] for name, case in cases.items()}


def layers_in_tiles(cases: Cases) -> Compared:
    """A scan over two layers of equal weights, inside a loop over 1, 2 or 5 tiles that knows its length at run time."""

    @jax.jit
    def together(data: dict, layers: dict, count: jax.Array) -> dict:
        def tile(i: jax.Array, out: dict) -> dict:
            rows = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False), data)

            def layer(carry: None, shared: dict) -> tuple[None, dict]:
                return carry, {name: case.function(rows[name], shared[name]) for name, case in cases.items()}

            _, found = jax.lax.scan(layer, None, layers, length=2)
            return jax.tree.map(lambda everything, one: everything.at[i].set(one), out, found)

        return jax.lax.fori_loop(0, count, tile, empty)

    twice = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), {name: stacked(case) for name, case in cases.items()})
    wanted = jax.tree.map(lambda leaf: np.swapaxes(leaf, 0, 1), twice)
    empty = jax.tree.map(np.zeros_like, wanted)
    data = {name: case.data for name, case in cases.items()}
    layers = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), weights(cases))
    compared: Compared = {name: [] for name in cases}
    for count in (1, 2, TILES):
        found = jax.device_get(together(data, layers, np.int32(count)))
        for name in cases:
            compared[name].append(jax.tree.map(lambda leaf, n=count: leaf[:n], (found[name], wanted[name])))
    return compared


def other_row_counts(cases: Cases, counts: tuple[int, ...] = (1, 37)) -> Compared:
    """One row, and 37 rows at once."""

    def together(data: dict, shared: dict) -> dict:
        return {name: [case.function(rows, shared[name]) for rows in data[name]] for name, case in cases.items()}

    data = {name: [case.rows(count) for count in counts] for name, case in cases.items()}
    found = jax.device_get(jax.jit(together)(data, weights(cases)))
    return {
        name: [(rows, flat(case, count)) for rows, count in zip(found[name], counts, strict=True)]
        for name, case in cases.items()
    }


def unrolled_on_two_devices(cases: Cases) -> Compared:
    """Two tiles, gathered from one pool, under the same weights, on two devices that hold equal rows."""
    everywhere = PartitionSpec()

    def together(data: dict, shared: dict, places: jax.Array) -> dict:
        return {
            name: [case.function(_gathered(data[name], place), shared[name]) for place in places]
            for name, case in cases.items()
        }

    mesh = Mesh(np.array(jax.devices()[:2]), ("devices",))
    split = jax.shard_map(together, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    places = np.arange(2 * ROWS, dtype=np.int32).reshape(2, ROWS)
    found = jax.jit(split)({name: case.rows(TILES * ROWS) for name, case in cases.items()}, weights(cases), places)
    pairs: Compared = {name: [] for name in cases}
    for device in range(2):
        here = jax.tree.map(lambda leaf, device=device: np.asarray(leaf.addressable_data(device)), found)
        for name, case in cases.items():
            pairs[name] += list(zip(here[name], alone(case), strict=False))
    return pairs


def _gathered(pool: Tree, place: jax.Array) -> Tree:
    """The places' rows of every leaf; a row made of units is put together from a pool of units, as pages are read."""

    def gather(leaf: jax.Array) -> jax.Array:
        if leaf.ndim < 3:
            return leaf[place]
        unit = place[:, None] * leaf.shape[1] + jnp.arange(leaf.shape[1], dtype=jnp.int32)[None, :]
        return leaf.reshape(-1, *leaf.shape[2:])[unit]

    return jax.tree.map(gather, pool)


def fused(cases: Cases) -> Compared:
    """The op behind gathers and steps that change no bit, its weights from a stack; lone steps after it."""
    order = np.random.default_rng(0).permutation(ROWS).astype(np.int32)
    given = {"order": order, "one": np.float32(1), "zero": np.float32(0), "layer": np.int32(1), "some": normal(1)}

    def together(data: dict, layers: dict, given: dict) -> dict:
        found = {}
        for name, case in cases.items():
            shared = jax.tree.map(lambda leaf: leaf[given["layer"]], layers[name])
            tile = jax.tree.map(lambda leaf: _restored(leaf, given), data[name])
            found[name] = _after(case.function(tile, shared), given["some"])
        return found

    shuffled = {name: jax.tree.map(lambda leaf: _shuffled(leaf, order), case.tile(0)) for name, case in cases.items()}
    layers = jax.tree.map(lambda leaf: np.stack([np.zeros_like(leaf), leaf]), weights(cases))
    found = jax.device_get(jax.jit(together)(shuffled, layers, given))
    return {name: [(found[name], _after(alone(case)[0], given["some"]))] for name, case in cases.items()}


def _shuffled(leaf: np.ndarray, order: np.ndarray) -> np.ndarray:
    out = np.empty_like(leaf)
    out[order] = leaf
    return out


def _restored(leaf: jax.Array, given: dict[str, Any]) -> jax.Array:
    value = leaf[given["order"]]
    if value.dtype != jnp.float32:
        return value
    there = (given["order"] >= 0).reshape(-1, *(1,) * (value.ndim - 1))
    return jnp.where(there, value, jnp.float32(7)) * given["one"] - given["zero"]


def _after(result: Tree, some: Any) -> Tree:
    """Lone steps after the op, whose roundings IEEE settles; a compiler might fold the last into the op."""

    def steps(leaf: Any) -> list[Any]:
        return [leaf + some, some - leaf, leaf * some, leaf * np.float32(0.3)] if leaf.dtype == np.float32 else [leaf]

    return jax.tree.map(steps, result)


CONTEXTS: dict[str, Callable[[Cases], Compared]] = {
    "intermediates_returned": intermediates_returned,
    "layers_in_tiles": layers_in_tiles,
    "other_row_counts": other_row_counts,
    "unrolled_on_two_devices": unrolled_on_two_devices,
    "fused": fused,
}
