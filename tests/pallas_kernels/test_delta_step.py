"""One step of the delta rule: a head's bits in any company of heads and in any program around it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gated_delta.reference import DeltaInputs, delta_step
from tests.sweep.case import unequal

HEADS, ROWS = 8, 5


def drawn(heads: int, key_size: int, value_size: int) -> tuple[jax.Array, DeltaInputs]:
    """The first `heads` of HEADS heads: a state, and ROWS rows."""
    rng = np.random.default_rng(7)
    normal = lambda *shape: jnp.asarray(rng.standard_normal((HEADS, *shape), np.float32)[:heads])  # noqa: E731
    by_row = lambda x: jnp.moveaxis(x, 1, 0)  # noqa: E731
    state = normal(key_size, value_size)
    rows = DeltaInputs(
        q=by_row(normal(ROWS, key_size)),
        k=by_row(normal(ROWS, key_size)),
        v=by_row(normal(ROWS, value_size)),
        beta=jax.nn.sigmoid(by_row(normal(ROWS))),
        decay=jax.nn.sigmoid(by_row(normal(ROWS))),
    )
    return state, rows


@jax.jit
def read_by_row(state: jax.Array, rows: DeltaInputs) -> tuple[jax.Array, jax.Array]:
    """The state after all rows, and what each row read: [T, H, dv]."""
    return jax.lax.scan(delta_step, state, rows)


@jax.jit
def walked(state: jax.Array, rows: DeltaInputs, count: jax.Array) -> jax.Array:
    """The state alone."""
    return jax.lax.fori_loop(0, count, lambda t, s: delta_step(s, jax.tree.map(lambda a: a[t], rows))[0], state)


@jax.jit
def unrolled(state: jax.Array, rows: DeltaInputs) -> tuple[jax.Array, jax.Array]:
    """The state, and what the last row read."""
    out = jnp.zeros(())
    for t in range(ROWS):
        state, out = delta_step(state, jax.tree.map(lambda a, t=t: a[t], rows))
    return state, out


@pytest.mark.parametrize(("key_size", "value_size"), [(1, 1), (4, 4), (8, 2), (16, 24), (128, 128)])
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_a_head_keeps_its_bits(heads, key_size, value_size):
    all_state, all_read = read_by_row(*drawn(HEADS, key_size, value_size))
    state, rows = drawn(heads, key_size, value_size)
    end, read = read_by_row(state, rows)
    assert not unequal(end, all_state[:heads])
    assert not unequal(read, all_read[:, :heads])
    assert not unequal(walked(state, rows, jnp.int32(ROWS)), end)
    last, out = unrolled(state, rows)
    assert not unequal(last, end)
    assert not unequal(out, read[-1])
