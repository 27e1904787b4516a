"""Traced: a recurrent layer's block: projections, the gated delta rule over rows, gated norm, output projection."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fnx_jax.collectives import gather_columns
from fnx_jax.families.flash_next.cache import delta_sizes
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import DeltaParams
from fnx_jax.families.flash_next.shards import Shards
from pallas_kernels.dense_matmul import linear
from pallas_kernels.gated_delta import DeltaState, RowPlaces, gated_delta_rows
from pallas_kernels.norms import plain_rms


def gated_delta_block(
    x_BD: Float[Array, "B D"],
    params: DeltaParams,
    config: FlashNextConfig,
    shards: Shards,
    state: DeltaState,
    folded_L: Int[Array, " L"],
    places: RowPlaces,
) -> tuple[DeltaState, Float[Array, "B D"]]:
    """Returns the layer's state after these rows and the block's output. float32."""
    raw, gates = delta_projections(x_BD, params, config, shards)
    state, read = gated_delta_rows(state, folded_L, places, raw, gates, params.rule, delta_sizes(config, shards))
    return state, delta_output(read, x_BD, params, config, shards)


def delta_projections(
    x_BD: Float[Array, "B D"], params: DeltaParams, config: FlashNextConfig, shards: Shards
) -> tuple[Float[Array, "B C"], Float[Array, "B 2H"]]:
    """Queries, keys and values before the convolution; b and a side by side."""
    heads = shards.delta_value_heads
    gates = jnp.concatenate([linear(x_BD, params.b)[:, :heads], linear(x_BD, params.a)[:, :heads]], axis=-1)
    return linear(x_BD, params.qkv)[:, : delta_sizes(config, shards).channels], gates


def delta_output(
    read_BHV: Float[Array, "B H dv"],
    x_BD: Float[Array, "B D"],
    params: DeltaParams,
    config: FlashNextConfig,
    shards: Shards,
) -> Float[Array, "B D"]:
    """Norms each head's read-out, gates it by z, gathers the heads and projects them."""
    values = shards.delta_value_heads * config.delta_value_size
    gate = linear(x_BD, params.z)[:, :values].reshape(read_BHV.shape)
    activation = jax.nn.sigmoid if config.delta_gate == "sigmoid" else jax.nn.silu
    gated = plain_rms(read_BHV, params.norm, config.norm_eps) * activation(gate)
    heads = gather_columns(gated.reshape(x_BD.shape[0], -1), shards.delta_ranks)
    return linear(heads, params.out)[:, : config.hidden]
