"""Traced: the gated delta rule over a whole sequence from an empty state, row by row and in chunks.

    S = exp(g) * S;   d = beta * (v - S^T k);   S = S + k d^T;   o = S^T q

The two forms are one function; the chunk form trades the walk over rows for matmuls, as training wants.
Source: Gated Delta Networks, arXiv 2412.06464. Read next: delta.py.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels.gated_delta.reference import DeltaInputs, delta_step

_POWERS = 16


@struct.dataclass
class RuleInputs:
    """q, k [T, H, dk]; v [T, H, dv]; beta, log_decay (g, at most 0) [T, H]; of one sequence, one dtype."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    beta: jax.Array
    log_decay: jax.Array


def rule_by_rows(inputs: RuleInputs) -> Float[Array, "T H dv"]:
    """Every row's read-out, by a scan over rows: what serving computes."""
    rows = DeltaInputs(q=inputs.q, k=inputs.k, v=inputs.v, beta=inputs.beta, decay=jnp.exp(inputs.log_decay))
    return lax.scan(delta_step, _empty_state(inputs), rows)[1]


def rule_by_chunks(inputs: RuleInputs, chunk: int) -> Float[Array, "T H dv"]:
    """The same, by a scan over chunks of `chunk` rows.

    With G the running sum of g inside a chunk and D_ij = exp(G_i - G_j) for i >= j:

        U = (I + strict_lower(diag(beta) K K^T * D))^-1 diag(beta) (V - diag(e^G) K S)
        O = diag(e^G) Q S + (Q K^T * D) U
        S <- e^G_last S + (diag(e^(G_last - G)) K)^T U

    Raises: ValueError where `chunk` is below 1.
    """
    if chunk < 1:
        raise ValueError(f"rule_by_chunks: a chunk of {chunk} rows")
    rows, heads, size = inputs.v.shape
    # A row of zeros leaves the state as it is, so the last chunk may be filled with them.
    chunks = jax.tree.map(lambda a: cut_chunks(a, chunk), inputs)
    out = lax.scan(_advance, _empty_state(inputs), _inside(chunks))[1]
    return out.swapaxes(1, 2).reshape(-1, heads, size)[:rows]


def chunk_step(
    state: Float[Array, "H dk dv"], rows: RuleInputs
) -> tuple[Float[Array, "H dk dv"], Float[Array, "H c dv"]]:
    """Takes one chunk into the state. Returns the state after it and the rows' read-outs."""
    return _advance(state, _inside(rows))


@struct.dataclass
class _Chunk:
    """What of a chunk does not depend on the state: U = own - seen S, O = gained S + mixed U, and how S moves on."""

    own: jax.Array  # [..., H, c, dv]
    seen: jax.Array  # [..., H, c, dk]
    gained: jax.Array  # [..., H, c, dk]
    mixed: jax.Array  # [..., H, c, c]
    faded_keys: jax.Array  # [..., H, dk, c]
    fade: jax.Array  # [..., H, 1, 1]


def _inside(rows: RuleInputs) -> _Chunk:
    """Of one chunk, or of many along a leading axis: all at once, where the walk over them would be one by one."""
    total = jnp.cumsum(rows.log_decay, axis=-1)
    span = total[..., :, None] - total[..., None, :]
    # The exponent is masked before exp: above the diagonal it is positive and may overflow.
    decay = jnp.exp(jnp.where(jnp.tril(jnp.ones(span.shape, bool)), span, -jnp.inf))
    gain, beta, keys_T = jnp.exp(total)[..., None], rows.beta[..., None], rows.k.swapaxes(-1, -2)
    solved = unit_lower_inverse(beta * _matmul(rows.k, keys_T) * decay)
    return _Chunk(
        own=_matmul(solved, beta * rows.v),
        seen=_matmul(solved, beta * gain * rows.k),
        gained=gain * rows.q,
        mixed=_matmul(rows.q, keys_T) * decay,
        faded_keys=keys_T * jnp.exp(total[..., -1:] - total)[..., None, :],
        fade=gain[..., -1:, :],
    )


def _advance(state: Float[Array, "H dk dv"], chunk: _Chunk) -> tuple[Float[Array, "H dk dv"], Float[Array, "H c dv"]]:
    change = chunk.own - _matmul(chunk.seen, state)
    out = _matmul(chunk.gained, state) + _matmul(chunk.mixed, change)
    return chunk.fade * state + _matmul(chunk.faded_keys, change), out


def unit_lower_inverse(a: Float[Array, "... c c"]) -> Float[Array, "... c c"]:
    """The inverse of I + strict_lower(a), by matmuls alone: triangular solves of many small matrices are slow on CPUs.

    Blocks of up to 16 rows by (I - N)^-1 = (I + N)(I + N^2)(I + N^4)(I + N^8), whose powers stay small enough for
    float32; larger ones by halves.
    """
    size, half = a.shape[-1], a.shape[-1] // 2
    if size <= _POWERS:
        eye = jnp.broadcast_to(jnp.eye(size, dtype=a.dtype), a.shape)
        power = -jnp.tril(a, -1)
        out, reach = eye + power, 2
        while reach < size:
            power = _matmul(power, power)
            out, reach = out + _matmul(out, power), 2 * reach
        return out
    top, low = unit_lower_inverse(a[..., :half, :half]), unit_lower_inverse(a[..., half:, half:])
    corner = -_matmul(low, _matmul(a[..., half:, :half], top))
    zeros = jnp.zeros((*a.shape[:-2], half, size - half), a.dtype)
    upper, lower = (jnp.concatenate(parts, axis=-1) for parts in ((top, zeros), (corner, low)))
    return jnp.concatenate([upper, lower], axis=-2)


def _matmul(a: Float[Array, "... i j"], b: Float[Array, "... j k"]) -> Float[Array, "... i k"]:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _empty_state(inputs: RuleInputs) -> Float[Array, "H dk dv"]:
    return jnp.zeros((*inputs.k.shape[1:], inputs.v.shape[2]), inputs.v.dtype)


def cut_chunks(a: Float[Array, "T H ..."], chunk: int) -> Float[Array, "n H c ..."]:
    """Cuts rows into chunks, zeros behind the last; heads come before rows."""
    padded = jnp.pad(a, [(0, -a.shape[0] % chunk)] + [(0, 0)] * (a.ndim - 1))
    return padded.reshape(-1, chunk, *a.shape[1:]).swapaxes(1, 2)
