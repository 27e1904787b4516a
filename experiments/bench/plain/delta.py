"""Traced: the recurrent block, one row of every lane at once or a whole prompt in chunks. Read next: attention.py."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from experiments.bench.plain.cache import DeltaCache
from experiments.bench.plain.dense import linear
from experiments.bench.plain.forms import Forms
from fnx_jax.families.flash_next.params import DeltaParams
from fnx_jax.families.flash_next.sequence.delta_rule import RuleInputs, chunk_step, cut_chunks
from fnx_jax.families.flash_next.sequence.norms import unit_length, unit_rms
from fnx_jax.families.flash_next.sequence.positions import causal_convolution


def decode_delta(x_BD: Float[Array, "B D"], params: DeltaParams, forms: Forms, cache: DeltaCache):
    """One row a lane. Returns the cache and the rows' read-outs."""
    raw = linear(x_BD, params.qkv, forms.delta.channels)
    window = jnp.concatenate([cache.tail, raw[:, None]], axis=1)
    convolved = jnp.sum(window * params.rule.conv_CT.astype(jnp.float32).T[None], axis=1)
    state, read = _step(cache.state, rule_inputs(x_BD, convolved, params, forms))
    return DeltaCache(state=state, tail=window[:, 1:]), read


def prefill_delta(
    x_TD: Float[Array, "T D"], params: DeltaParams, forms: Forms, cache: DeltaCache, lane: Int[Array, ""]
):
    """A whole prompt into an empty lane."""
    raw = linear(x_TD, params.qkv, forms.delta.channels)
    inputs = rule_inputs(x_TD, causal_convolution(raw, params.rule.conv_CT, 1), params, forms)
    state, read = walked(inputs, forms)
    tail = raw[x_TD.shape[0] - cache.tail.shape[1] :]
    return DeltaCache(state=cache.state.at[lane].set(state), tail=cache.tail.at[lane].set(tail)), read


def walked(inputs: RuleInputs, forms: Forms) -> tuple[Float[Array, "H dk dv"], Float[Array, "T H dv"]]:
    """A prompt's rows from an empty state, in chunks or one by one. Returns the state and the read-outs."""
    sizes, rows = forms.delta, inputs.q.shape[0]
    state = jnp.zeros((sizes.value_heads, sizes.key_size, sizes.value_size), jnp.float32)
    if not forms.chunk:
        one = lambda state, row: jax.tree.map(lambda a: a[0], _step(state[None], row))  # noqa: E731
        return jax.lax.scan(one, state, jax.tree.map(lambda a: a[:, None], inputs))
    state, read = jax.lax.scan(chunk_step, state, jax.tree.map(lambda a: cut_chunks(a, forms.chunk), inputs))
    return state, read.swapaxes(1, 2).reshape(-1, sizes.value_heads, sizes.value_size)[:rows]


def rule_inputs(x_BD: Array, convolved_BC: Array, params: DeltaParams, forms: Forms) -> RuleInputs:
    """What each row brings to the state."""
    rows, sizes = x_BD.shape[0], forms.delta
    keys = sizes.key_heads * sizes.key_size
    q, k, v = jnp.split(jax.nn.silu(convolved_BC), [keys, 2 * keys], axis=1)
    q = unit_length(q.reshape(rows, sizes.key_heads, -1)) * sizes.key_size**-0.5
    k = unit_length(k.reshape(rows, sizes.key_heads, -1))
    bias = params.rule.time_bias.astype(jnp.float32)[None, :]
    step = jax.nn.softplus(linear(x_BD, params.a, sizes.value_heads) + bias)
    repeat = sizes.value_heads // sizes.key_heads
    return RuleInputs(
        q=jnp.repeat(q, repeat, axis=1),
        k=jnp.repeat(k, repeat, axis=1),
        v=v.reshape(rows, sizes.value_heads, -1),
        beta=jax.nn.sigmoid(linear(x_BD, params.b, sizes.value_heads)),
        log_decay=-jnp.exp(params.rule.decay_log.astype(jnp.float32))[None, :] * step,
    )


def delta_output(read_BHV: Float[Array, "B H dv"], x_BD: Float[Array, "B D"], params: DeltaParams, forms: Forms):
    """Norms, gates and projects the read-outs."""
    values = forms.delta.value_heads * forms.delta.value_size
    activation = jax.nn.sigmoid if forms.config.delta_gate == "sigmoid" else jax.nn.silu
    gate = activation(linear(x_BD, params.z, values)).reshape(read_BHV.shape)
    normed = unit_rms(read_BHV, forms.config.norm_eps) * params.norm.astype(jnp.float32)[None, None, :]
    return forms.project(linear, (normed * gate).reshape(-1, values), params.out, forms.shards.delta_ranks)


def _step(state: Float[Array, "B H dk dv"], row: RuleInputs):
    decay = jnp.exp(row.log_decay)[:, :, None, None]
    read = decay * jnp.einsum("bhik,bhkv->bhiv", jnp.stack([row.k, row.q], axis=2), state)
    change = row.beta[:, :, None] * (row.v - read[:, :, 0])
    state = decay * state + row.k[..., None] * change[:, :, None, :]
    return state, read[:, :, 1] + jnp.sum(row.k * row.q, axis=-1)[:, :, None] * change
