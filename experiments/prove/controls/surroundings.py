"""Host side: norms at the widths of the real model, alone and in the middle of a larger program, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import norms
from pallas_kernels.norms.shapes import SHAPES

ROWS, EPS = 16, 1e-6
WIDTHS = ("streams", "query_heads", "delta_heads")


def surroundings() -> str | None:
    """Rows that are gathered, normed and added to, as one program and as three."""
    for number, name in enumerate(WIDTHS):
        groups, width = SHAPES[name].groups, SHAPES[name].width
        rng = np.random.default_rng(number)
        stored, added = (rng.standard_normal((ROWS, groups, width)).astype(np.float32) for _ in range(2))
        weight = rng.standard_normal((groups, width)).astype(np.float32)
        order = rng.permutation(ROWS).astype(np.int32)
        apart = jax.jit(_add)(jax.jit(_norm)(jax.jit(_gather)(stored, order), weight), added)
        together = jax.jit(lambda *a: _add(_norm(_gather(a[0], a[1]), a[2]), a[3]))(stored, order, weight, added)
        unequal = np.argwhere(np.asarray(apart) != np.asarray(together))
        if len(unequal):
            return f"norm of {name}: {len(unequal)} of {stored.size} numbers differ, first in row {unequal[0][0]}"
    return None


def _gather(stored: jax.Array, order: jax.Array) -> jax.Array:
    return stored[order]


def _norm(rows: jax.Array, weight: jax.Array) -> jax.Array:
    return norms.centred_rms(rows, weight, EPS)


def _add(rows: jax.Array, added: jax.Array) -> jax.Array:
    return jnp.add(rows, added)
