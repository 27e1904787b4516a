"""Traced: raw log-probabilities of rows of logits. The draw itself is in sampling.py.

What is reported is the model's own distribution: no temperature, penalty, bias or filter touches it.
"""

from jaxtyping import Array, Float32, Int32

from fnx_jax.vocabulary_slices import Slices, whole
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
    logits_BV: Float32[Array, "B v"], target_B: Int32[Array, "B"], top: int, slices: Slices | None = None
) -> tuple[Float32[Array, "B"], Int32[Array, "B K"], Float32[Array, "B K"]]:
    """Log-softmax of each row at a given next token and at its likeliest ids.

    Args:
      logits_BV: float32, raw; columns beyond the vocabulary, if any, hold -inf.
      target_B: ids in [0, V); rows without one pass 0. top: likeliest ids to report, static.
      slices: how the vocabulary is dealt, static; logits then are this rank's columns. None: all of it is here.
    Returns: the target's log-probability, NaN where the row holds a NaN or +inf; the K = min(top, V) likeliest ids,
      best first, ties to the lower id; and their log-probabilities.
    Raises: ValueError where top is negative or the logits are not float32 rows.
    """
    slices = slices or whole(logits_BV.shape[1])
    top_BK, ids_BK = slices.top(logits_BV, top)
    ceiling_B = slices.largest(logits_BV)
    sums_BN = slices.gathered(block_sums(logits_BV, ceiling_B))
    logprob_B = log_softmax(slices.at(logits_BV, target_B), ceiling_B, sums_BN)[:, 0]
    return logprob_B, ids_BK, log_softmax(top_BK, ceiling_B, sums_BN)
