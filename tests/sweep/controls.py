"""Wrong twins of the model's ops: each breaks the rule in one way that the sweep must see."""

import jax
import jax.numpy as jnp

from pallas_kernels.keyed_noise import gumbel_noise
from tests.sweep.case import Case, normal, tiles


def library_sum(x: jax.Array, _: tuple) -> jax.Array:
    """The library's sum of a row: its order is the compiler's choice."""
    return jnp.sum(x, axis=(1, 2))


def untiled_matmul(x: jax.Array, weight_IO: jax.Array) -> jax.Array:
    """A dot of as many rows as there are: each height may be another program."""
    return jax.lax.dot(x, weight_IO, precision=jax.lax.Precision.HIGHEST)


def library_functions(tile: tuple[jax.Array, jax.Array], weight: jax.Array) -> list[jax.Array]:
    """The library's exp of a short vector, its exp and log of a column: of two routines the compiler takes either."""
    x, column = tile
    return [x * jnp.exp(weight)[None, :], jnp.exp(column[:, 0]), jnp.log(jnp.abs(column)[:, 0])]


def shared_maximum(x: jax.Array, _: tuple) -> jax.Array:
    """Rows scaled by what the whole tile holds."""
    return x / jnp.max(jnp.abs(x))


def placed_noise(x: jax.Array, _: tuple) -> jax.Array:
    """Noise keyed by a row's place among those that are drawn together."""
    seed, position = jnp.zeros((x.shape[0], 2), jnp.uint32), jnp.arange(x.shape[0], dtype=jnp.int32)
    return x + gumbel_noise(seed, position, position, jnp.arange(x.shape[1], dtype=jnp.int32)[None])


CONTROLS: dict[str, Case] = {
    "library_sum": Case(library_sum, tiles(1, 8, 16)),
    "untiled_matmul": Case(untiled_matmul, tiles(2, 256), normal(3, 256, 384)),
    "library_functions": Case(library_functions, (tiles(4, 6), tiles(7, 1)), normal(5, 6)),
    "placed_noise": Case(placed_noise, tiles(8, 32)),
    "shared_maximum": Case(shared_maximum, tiles(6, 64)),
}
