"""Traced: raw log-probabilities of rows of logits. The draw itself is in sampling.py.

What is reported is the model's own distribution: no temperature, penalty, bias or filter touches it.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from pallas_kernels.candidates import top_candidates
from pallas_kernels.elementary import log
from pallas_kernels.vocabulary_sums import block_sums, join_sums


def log_softmax(
    values_BK: Float32[Array, "B K"], ceiling_B: Float32[Array, "B"], sums_BN: Float32[Array, "B N"]
) -> Float32[Array, "B K"]:
    """Turns some logits of a row into log-probabilities: (value - ceiling) - log(sum over the vocabulary).

    Args:
      values_BK: any of the row's logits.
      ceiling_B: the row's largest logit over the whole vocabulary.
      sums_BN: `block_sums` of the whole vocabulary, gathered in block order where devices hold slices of it.
    """
    return (values_BK - ceiling_B[:, None]) - log(join_sums(sums_BN))[:, None]


def row_logprobs(
    logits_BV: Float32[Array, "B V"], target_B: Int32[Array, "B"], top: int
) -> tuple[Float32[Array, "B"], Int32[Array, "B K"], Float32[Array, "B K"]]:
    """Log-softmax of each row at a given next token and at its likeliest ids.

    Args:
      logits_BV: float32, raw; columns beyond the vocabulary, if any, hold -inf.
      target_B: ids in [0, V); rows without one pass 0. top: likeliest ids to report, static.
    Returns: the target's log-probability, NaN where the row holds a NaN or +inf; the K = min(top, V) likeliest ids,
      best first, ties to the lower id; and their log-probabilities.
    Raises: ValueError where top is negative or the logits are not float32 rows.
    """
    top_BK, ids_BK = top_candidates(logits_BV, top)
    ceiling_B = logits_BV.max(axis=1)
    sums_BN = block_sums(logits_BV, ceiling_B)
    target_B1 = jnp.take_along_axis(logits_BV, target_B[:, None], axis=1)
    logprob_B = log_softmax(target_B1, ceiling_B, sums_BN)[:, 0]
    return logprob_B, ids_BK, log_softmax(top_BK, ceiling_B, sums_BN)
