"""What a lane costs at full size: a verify row a small part of the recurrent states, which are never copied."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from checkpoints.full_size import full_config
from fnx_jax.families import FLASH_NEXT
from fnx_jax.families.flash_next.config import read_config
from fnx_jax.lanes.state import empty_state
from fnx_jax.mesh import make_mesh


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_verify_row_costs_at_most_two_percent_of_a_lanes_state(ranks, monkeypatch):
    config = replace(read_config(full_config()), mtp_layers=1)
    # Shapes alone: nothing of this size is allocated.
    monkeypatch.setattr("fnx_jax.lanes.state.zeros", lambda shape, dtype, *_: jax.ShapeDtypeStruct(shape, dtype))
    shards = FLASH_NEXT.deal(config, ranks)
    state = empty_state(FLASH_NEXT, config, shards, 1, 1, 64, jnp.dtype(jnp.bfloat16), make_mesh(1))
    recurrent = sum(nbytes(layer.committed) for layer in state.cache.delta)
    rings = [layer.ring for layer in state.cache.delta] + [*state.cache.ngram, state.streams_LRN]
    row = sum(nbytes(ring) // ring.shape[1] for ring in rings)
    assert recurrent * ranks == 108 * 2**20
    assert 0.01 * recurrent < row < 0.02 * recurrent


def nbytes(leaf: jax.ShapeDtypeStruct) -> int:
    """Bytes of a leaf."""
    return leaf.size * leaf.dtype.itemsize
