"""Traced: a recurrent layer's block over a sequence: projections, convolution, the gated delta rule, gated output.

Read next: delta_rule.py (the two forms of the rule), attention.py.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import DeltaParams
from fnx_jax.families.flash_next.sequence.delta_rule import RuleInputs, rule_by_chunks, rule_by_rows
from fnx_jax.families.flash_next.sequence.dense import linear
from fnx_jax.families.flash_next.sequence.norms import unit_length, unit_rms
from fnx_jax.families.flash_next.sequence.positions import causal_convolution

CHUNK = 64
"""Rows of a chunk where the caller names no number."""


def gated_delta(x_TD: Float[Array, "T D"], params: DeltaParams, config: FlashNextConfig) -> Float[Array, "T D"]:
    """The block's output, the recurrence walked row by row."""
    return delta_output(rule_by_rows(delta_inputs(x_TD, params, config)), x_TD, params, config)


def gated_delta_chunked(
    x_TD: Float[Array, "T D"], params: DeltaParams, config: FlashNextConfig, chunk: int = CHUNK
) -> Float[Array, "T D"]:
    """The same function, the recurrence in chunks of `chunk` rows."""
    return delta_output(rule_by_chunks(delta_inputs(x_TD, params, config), chunk), x_TD, params, config)


def delta_inputs(x_TD: Float[Array, "T D"], params: DeltaParams, config: FlashNextConfig) -> RuleInputs:
    """What each row brings to the recurrent state: projections, convolved, activated, normed, split into heads."""
    rows, keys = x_TD.shape[0], config.delta_key_heads * config.delta_key_size
    raw = linear(x_TD, params.qkv, config.delta_channels)
    mixed = jax.nn.silu(causal_convolution(raw, params.rule.conv_CT, 1))
    q, k, v = jnp.split(mixed, [keys, 2 * keys], axis=1)
    q = unit_length(q.reshape(rows, config.delta_key_heads, -1)) * config.delta_key_size**-0.5
    k = unit_length(k.reshape(rows, config.delta_key_heads, -1))
    step = jax.nn.softplus(
        linear(x_TD, params.a, config.delta_value_heads) + params.rule.time_bias.astype(x_TD.dtype)[None, :]
    )
    repeat = config.delta_value_heads // config.delta_key_heads
    return RuleInputs(
        q=jnp.repeat(q, repeat, axis=1),
        k=jnp.repeat(k, repeat, axis=1),
        v=v.reshape(rows, config.delta_value_heads, -1),
        beta=jax.nn.sigmoid(linear(x_TD, params.b, config.delta_value_heads)),
        log_decay=-jnp.exp(params.rule.decay_log.astype(x_TD.dtype))[None, :] * step,
    )


def delta_output(
    read_THV: Float[Array, "T H dv"], x_TD: Float[Array, "T D"], params: DeltaParams, config: FlashNextConfig
) -> Float[Array, "T D"]:
    """Norms each head's read-out, gates it by z and projects it."""
    return linear(gated_values(read_THV, x_TD, params, config), params.out, config.hidden)


def gated_values(
    read_THV: Float[Array, "T H dv"], x_TD: Float[Array, "T D"], params: DeltaParams, config: FlashNextConfig
) -> Float[Array, "T O"]:
    """What the output projection reads: each head's normed read-out times its gate, heads side by side."""
    values = config.delta_value_heads * config.delta_value_size
    activation = jax.nn.sigmoid if config.delta_gate == "sigmoid" else jax.nn.silu
    gate = activation(linear(x_TD, params.z, values)).reshape(read_THV.shape)
    normed = unit_rms(read_THV, config.norm_eps) * params.norm.astype(x_TD.dtype)[None, None, :]
    return (normed * gate).reshape(-1, values)
