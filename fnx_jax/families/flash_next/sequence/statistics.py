"""Traced: second moments of what the linears of a layer read, over the rows of one sequence.

For a quantiser, which weighs its errors by them. Rows that are not finite count nowhere. Read next: network.py.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import AttentionParams, DeltaParams, LayerParams, MtpParams
from fnx_jax.families.flash_next.sequence import attention, delta, network
from fnx_jax.families.flash_next.sequence.delta_rule import rule_by_chunks
from fnx_jax.families.flash_next.sequence.dense import linear
from fnx_jax.families.flash_next.sequence.moe import Project, picks, scan_experts, shared_hidden
from fnx_jax.families.flash_next.sequence.ngram import ngram_mix
from fnx_jax.families.flash_next.sequence.residual import read, write


@struct.dataclass
class Moments:
    """sum x x^T over rows, and how many rows; sums of Moments add up leaf by leaf."""

    sum: jax.Array  # [..., K, K] float32
    rows: jax.Array  # [...] float32


@struct.dataclass
class LayerMoments:
    """mixer: input of the mixer's projections; out: of its output projection; mlp: of router, gates and ups; shared: of
    the shared expert's down projection; experts: of each expert's, over the rows that picked it, stacked.
    """

    mixer: Moments
    out: Moments
    mlp: Moments
    shared: Moments
    experts: Moments


def moments(x_TK: Float[Array, "T K"], counted_T: Array | None = None) -> Moments:
    """Moments of rows, or of those that are counted."""
    good = jnp.all(jnp.isfinite(x_TK), axis=1)
    good = good if counted_T is None else good & counted_T
    x = jnp.where(good[:, None], x_TK, 0).astype(jnp.float32)
    total = jax.lax.dot_general(
        x, x, (((0,), (0,)), ((), ())), precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )
    return Moments(sum=total, rows=jnp.sum(good.astype(jnp.float32)))


def layer_moments(
    streams: Float[Array, "T N"],
    params: LayerParams,
    config: FlashNextConfig,
    ngram_TE: Float[Array, "T E"] | None,
    chunk: int,
) -> LayerMoments:
    """Runs a layer and takes the moments of what its linears read."""
    if params.ngram is not None and ngram_TE is not None:
        streams = ngram_mix(streams, ngram_TE, params.ngram, config)
    x, gate = read(streams, params.mixer_hyper, config)
    values, projection = _mixer_values(x, params.mixer, config, chunk)
    mixed = linear(values, projection, config.hidden)
    streams = write(streams, mixed, gate)
    h, _ = read(streams, params.moe_hyper, config)
    expert_TA, _ = picks(h, params.moe, config)

    def visit(carry: None, down: Project, hidden_TF: Array, expert: Array) -> tuple[None, Moments]:
        return carry, moments(hidden_TF, jnp.any(expert_TA == expert, axis=1))

    ids = jnp.arange(config.experts, dtype=expert_TA.dtype)
    _, experts = scan_experts(visit, None, ids, h, params.moe.lines, params.moe.line_map, config)
    shared = moments(shared_hidden(h, params.moe.shared, config))
    return LayerMoments(mixer=moments(x), out=moments(values), mlp=moments(h), shared=shared, experts=experts)


def draft_moments(
    streams: Float[Array, "T N"],
    embedding_TD: Float[Array, "T D"],
    params: MtpParams,
    config: FlashNextConfig,
    chunk: int,
) -> tuple[Moments, Moments, LayerMoments]:
    """Moments of the draft head: of the next tokens' normed embeddings, the normed streams, and its layer's inputs."""
    token, hidden = network.mtp_inputs(params, config, streams, embedding_TD)
    fused = network.mtp_fused(params, config, token, hidden)
    layer = layer_moments(fused, params.layer, config, None, chunk)
    return moments(token), moments(hidden.reshape(-1, config.hidden)), layer


def _mixer_values(x: Array, params: DeltaParams | AttentionParams, config: FlashNextConfig, chunk: int):
    """What the output projection of a mixer reads, and that projection."""
    if isinstance(params, AttentionParams):
        return attention.gated_values(x, params, config), params.o
    rows = rule_by_chunks(delta.delta_inputs(x, params, config), chunk)
    return delta.gated_values(rows, x, params, config), params.out
