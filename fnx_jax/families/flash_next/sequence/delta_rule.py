"""Traced: the gated delta rule over a whole sequence from an empty state, row by row and in chunks.

    S = exp(g) * S;   d = beta * (v - S^T k);   S = S + k d^T;   o = S^T q

The two forms are one function; the chunk form trades the walk over rows for matmuls, as training wants.
Source: Gated Delta Networks, arXiv 2412.06464. Read next: delta.py.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from pallas_kernels.gated_delta.reference import DeltaInputs, delta_step


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
    out = lax.scan(chunk_step, _empty_state(inputs), chunks)[1]
    return out.swapaxes(1, 2).reshape(-1, heads, size)[:rows]


def chunk_step(
    state: Float[Array, "H dk dv"], rows: RuleInputs
) -> tuple[Float[Array, "H dk dv"], Float[Array, "H c dv"]]:
    """Takes one chunk into the state. Returns the state after it and the rows' read-outs."""
    total = jnp.cumsum(rows.log_decay, axis=1)
    lower = jnp.tril(jnp.ones((total.shape[1], total.shape[1]), bool))[None]
    # The exponent is masked before exp: above the diagonal it is positive and may overflow.
    decay = jnp.exp(jnp.where(lower, total[:, :, None] - total[:, None, :], -jnp.inf))
    gain, beta = jnp.exp(total)[:, :, None], rows.beta[:, :, None]
    keys_T = rows.k.swapaxes(1, 2)
    mixing = beta * _matmul(rows.k, keys_T) * decay
    wanted = beta * (rows.v - gain * _matmul(rows.k, state))
    change = solve_triangular(mixing, wanted, lower=True, unit_diagonal=True)
    out = gain * _matmul(rows.q, state) + _matmul(_matmul(rows.q, keys_T) * decay, change)
    fading = jnp.exp(total[:, -1:] - total)[:, None, :]
    return gain[:, -1:] * state + _matmul(keys_T * fading, change), out


def _matmul(a: Float[Array, "H i j"], b: Float[Array, "H j k"]) -> Float[Array, "H i k"]:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _empty_state(inputs: RuleInputs) -> Float[Array, "H dk dv"]:
    return jnp.zeros((*inputs.k.shape[1:], inputs.v.shape[2]), inputs.v.dtype)


def cut_chunks(a: Float[Array, "T H ..."], chunk: int) -> Float[Array, "n H c ..."]:
    """Cuts rows into chunks, zeros behind the last; heads come before rows."""
    padded = jnp.pad(a, [(0, -a.shape[0] % chunk)] + [(0, 0)] * (a.ndim - 1))
    return padded.reshape(-1, chunk, *a.shape[1:]).swapaxes(1, 2)
