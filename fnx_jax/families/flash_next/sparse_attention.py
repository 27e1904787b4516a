"""Traced: a sparse attention layer's block: projections, indexer, selection, attention over pages, output gate."""

import jax
from flax import struct
from jaxtyping import Array, Float, Int

from fnx_jax.collectives import gather_columns
from fnx_jax.families.flash_next.cache import AttentionPages
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import AttentionParams
from fnx_jax.families.flash_next.shards import Shards
from pallas_kernels import sparse_attention as op
from pallas_kernels.dense_matmul import linear
from pallas_kernels.gated_delta import RowPlaces
from pallas_kernels.norms import centred_rms
from pallas_kernels.rope import rotate


@struct.dataclass
class Projected:
    """query, gate [B, H, K]; key, value [B, G, K]; index_query [B, h, D]; raw [B, D]. Queries and keys are turned."""

    query: jax.Array
    gate: jax.Array
    key: jax.Array
    value: jax.Array
    index_query: jax.Array
    raw: jax.Array


def project(
    x_BD: Float[Array, "B D"],
    params: AttentionParams,
    config: FlashNextConfig,
    shards: Shards,
    position_B: Int[Array, " B"],
) -> Projected:
    """Projects rows and turns what must be turned, at the rows' positions. float32."""
    rows, size = x_BD.shape[0], config.head_size
    q = linear(x_BD, params.q)[:, : shards.heads * 2 * size].reshape(rows, shards.heads, 2 * size)
    k = linear(x_BD, params.k)[:, : shards.kv_heads * size].reshape(rows, shards.kv_heads, size)
    v = linear(x_BD, params.v)[:, : shards.kv_heads * size].reshape(rows, shards.kv_heads, size)
    width = (config.index_heads + 1) * config.index_size
    index = linear(x_BD, params.index)[:, :width].reshape(rows, config.index_heads + 1, config.index_size)
    return Projected(
        query=_turned(q[..., :size], params.q_norm, config, position_B),
        gate=q[..., size:],
        key=_turned(k, params.k_norm, config, position_B),
        value=v,
        index_query=_turned(index[:, :-1], params.index_q_norm, config, position_B),
        raw=index[:, -1],
    )


def block_keys(
    mean_BD: Float[Array, "B D"], params: AttentionParams, config: FlashNextConfig, block_B: Int[Array, " B"]
) -> Float[Array, "B D"]:
    """Pooled keys from the means of raw keys: normed, then turned at the block's first position."""
    return _turned(mean_BD[:, None, :], params.index_k_norm, config, block_B * config.block)[:, 0]


def sparse_attention_block(
    x_BD: Float[Array, "B D"],
    params: AttentionParams,
    config: FlashNextConfig,
    shards: Shards,
    pages: AttentionPages,
    table: op.PageTable,
    places: RowPlaces,
) -> tuple[AttentionPages, Float[Array, "B D"]]:
    """Writes the rows into the pages, then lets each attend to its own past. Returns pages and the block's output."""
    projected = project(x_BD, params, config, shards, places.position_B)
    pages = store(pages, projected, params, config, table, places)
    seen = (places.position_B + 1) // config.block
    scores = op.block_scores(projected.index_query, pages.pooled, table, seen)
    kept, count = op.keep_blocks(scores, seen, config.kept_blocks)
    out = op.attend(projected.query, pages.key, pages.value, table, kept, count, places.position_B, config.block)
    return pages, attention_output(out, projected.gate, params, config, shards)


def store(
    pages: AttentionPages,
    projected: Projected,
    params: AttentionParams,
    config: FlashNextConfig,
    table: op.PageTable,
    places: RowPlaces,
) -> AttentionPages:
    """Writes keys, values and raw index keys, and the pooled key of each block that a row completes."""
    position, live = places.position_B, places.live_B
    raw = op.write_rows(pages.raw, table, position, live, projected.raw)
    block = position // config.block
    done = live & (position % config.block == config.block - 1)
    pooled = block_keys(op.block_means(raw, table, block, config.block), params, config, block)
    return AttentionPages(
        key=op.write_rows(pages.key, table, position, live, projected.key),
        value=op.write_rows(pages.value, table, position, live, projected.value),
        raw=raw,
        pooled=op.write_blocks(pages.pooled, table, block, done, pooled),
    )


def attention_output(
    out_BHK: Float[Array, "B H K"],
    gate_BHK: Float[Array, "B H K"],
    params: AttentionParams,
    config: FlashNextConfig,
    shards: Shards,
) -> Float[Array, "B D"]:
    """Gates each head's output, gathers the heads and projects them."""
    gated = out_BHK * jax.nn.sigmoid(gate_BHK)
    heads = gather_columns(gated.reshape(out_BHK.shape[0], -1), shards.ranks)
    return linear(heads, params.o)[:, : config.hidden]


def _turned(x_BHK: Array, norm: Array, config: FlashNextConfig, position_B: Array) -> Array:
    normed = centred_rms(x_BHK, norm, config.norm_eps)
    return rotate(normed, position_B, config.rotary_size, config.rope_theta)
