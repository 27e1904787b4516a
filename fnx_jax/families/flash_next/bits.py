"""Host side: the parameter tree as row programs on CPUs take it: pools of bfloat16 experts seen as their bits.

A CPU program that picks lines of a bfloat16 pool in a loop may widen the whole pool first; integers stay as they are.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fnx_jax.families.flash_next.params import LayerParams, ModelParams
from pallas_kernels.expert_matmul import Pools


def pools_as_bits(params: ModelParams) -> ModelParams:
    """The same tree over the same memory, plain bfloat16 expert pools as uint16."""
    mtp = params.mtp and replace(params.mtp, layer=_layer(params.mtp.layer))
    return replace(params, layers=tuple(map(_layer, params.layers)), mtp=mtp)


def _layer(layer: LayerParams) -> LayerParams:
    lines = layer.moe.lines
    bits = replace(lines, gate=_pools(lines.gate), up=_pools(lines.up), down=_pools(lines.down))
    return replace(layer, moe=replace(layer.moe, lines=bits))


def _pools(pools: Pools) -> Pools:
    return tuple(_bits(pool) if isinstance(pool, jax.Array) and pool.dtype == jnp.bfloat16 else pool for pool in pools)


def _bits(pool: jax.Array) -> jax.Array:
    # Aligned host memory is taken over as it is, so no byte is copied.
    parts = [jax.device_put(np.asarray(shard.data).view(np.uint16), shard.device) for shard in pool.addressable_shards]
    return jax.make_array_from_single_device_arrays(pool.shape, pool.sharding, parts)
