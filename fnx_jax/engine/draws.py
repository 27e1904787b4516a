"""Host side: the arrays that change a lane's logits before its draw: reply counts, ids seen, bias and masks.

Only what a request needs is built. Arrays that a device gets are never written again. Read next: lane.py.
"""

from collections.abc import Sequence

import numpy as np

from fnx_jax.engine.ending import end_ids
from fnx_jax.engine.request import Request, SamplingParams
from fnx_jax.engine.steps import Draw

SEED_BITS = 64


def penalizes(sampling: SamplingParams) -> bool:
    """Whether a draw depends on which tokens came before, beside the logits."""
    neutral = (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.0, 0.0, 1.0)
    return not neutral


class DrawArrays:
    """One lane's counts, seen ids and bias, brought up to date token by token."""

    def __init__(self, request: Request, vocabulary: int):
        sampling = request.sampling
        self._sampling = sampling
        self._counts_V = self._seen_V = None
        if penalizes(sampling):
            self._counts_V = np.zeros(vocabulary, np.int32)
            self._seen_V = np.zeros(vocabulary, np.bool_)
            self._seen_V[list(request.prompt)] = True
        self._bias_V = _bias(sampling, vocabulary)
        self._masked_V = _masked(sampling, self._bias_V, vocabulary)

    def commit(self, token: int) -> None:
        """Counts a reply token."""
        if self._counts_V is not None and self._seen_V is not None:
            self._counts_V[token] += 1
            self._seen_V[token] = True

    def draw(self, row: int, position: int, replied: int, ahead: Sequence[int] = ()) -> Draw:
        """Describes the draw at a row.

        Args:
          row: index in the plan. position: of the drawn token.
          replied: reply tokens before the drawn one. ahead: those of them that are still drafts, not yet counted.
        """
        s = self._sampling
        counts_V, seen_V = self._penalty_arrays(ahead)
        return Draw(
            row=row,
            position=position,
            seed=s.seed % 2**SEED_BITS,
            choice=s.choice,
            temperature=s.temperature,
            top_k=s.top_k,
            top_p=s.top_p,
            min_p=s.min_p,
            presence_penalty=s.presence_penalty,
            frequency_penalty=s.frequency_penalty,
            repetition_penalty=s.repetition_penalty,
            counts_V=counts_V,
            seen_V=seen_V,
            bias_V=self._masked_V if replied < s.min_tokens else self._bias_V,
            logprobs=s.logprobs,
        )

    def _penalty_arrays(self, ahead: Sequence[int]) -> tuple[np.ndarray | None, np.ndarray | None]:
        if self._counts_V is None or self._seen_V is None:
            return None, None
        # Copies: a device may read them in place, and the next commit writes the originals.
        counts_V, seen_V = self._counts_V.copy(), self._seen_V.copy()
        for token in ahead:
            counts_V[token] += 1
            seen_V[token] = True
        return counts_V, seen_V


def _bias(sampling: SamplingParams, vocabulary: int) -> np.ndarray | None:
    if not sampling.logit_bias:
        return None
    bias_V = np.zeros(vocabulary, np.float32)
    for token, bias in sampling.logit_bias:
        bias_V[token] += bias
    bias_V.flags.writeable = False
    return bias_V


def _masked(sampling: SamplingParams, bias_V: np.ndarray | None, vocabulary: int) -> np.ndarray | None:
    """The bias while `min_tokens` is not reached: whatever would end the reply is forbidden."""
    ends = sorted(end_ids(sampling))
    if not (sampling.min_tokens and ends):
        return bias_V
    masked_V = np.zeros(vocabulary, np.float32) if bias_V is None else bias_V.copy()
    masked_V[ends] = -np.inf
    masked_V.flags.writeable = False
    return masked_V
