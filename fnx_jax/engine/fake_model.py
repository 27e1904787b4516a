"""Host side: a model that is only a hash. Pure functions of a token sequence, to stand in for a network in tests.

Read next: fake.py.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from fnx_jax.engine.request import TokenLogprobs
from fnx_jax.engine.steps import Draw


def _generator(*parts: int) -> np.random.Generator:
    digest = hashlib.blake2b(np.array(parts, np.uint64).tobytes(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def fake_logits(tokens: Sequence[int], vocabulary: int, forced: int | None = None) -> Float[np.ndarray, "V"]:
    """Returns float32 logits of what follows `tokens`: hashed from all of them; `forced` is far above the rest."""
    logits_V = 2 * _generator(*tokens).standard_normal(vocabulary, np.float32)
    if forced is not None:
        logits_V[forced] = 100
    return logits_V


def fake_draw(logits_V: Float[np.ndarray, "V"], draw: Draw) -> int | None:
    """Draws a token: bias, penalties, temperature, noise of (seed, choice, position). None where all is forbidden.

    Filters (top_k, top_p, min_p) are left out: the host never sees what they do.
    """
    logits_V = _penalized(logits_V if draw.bias_V is None else logits_V + draw.bias_V, draw)
    if np.isneginf(logits_V).all():
        return None
    if draw.temperature < 1e-5:
        return int(np.argmax(logits_V))
    noise_V = _generator(draw.seed, draw.choice, draw.position).gumbel(size=len(logits_V))
    return int(np.argmax(logits_V / draw.temperature + noise_V))


def fake_logprobs(logits_V: Float[np.ndarray, "V"], token: int, top: int) -> TokenLogprobs:
    """Returns the log-probabilities of raw logits: the token's, and the `top` likeliest, ties to the lower id."""
    values_V = logits_V.astype(np.float64)
    values_V -= values_V.max()
    values_V -= np.log(np.exp(values_V).sum())
    best = np.argsort(-values_V, kind="stable")[:top]
    return TokenLogprobs(token, float(values_V[token]), tuple((int(i), float(values_V[i])) for i in best))


def _penalized(logits_V: np.ndarray, draw: Draw) -> np.ndarray:
    if draw.counts_V is None or draw.seen_V is None:
        return logits_V
    factor = draw.repetition_penalty
    repeated_V = np.where(logits_V > 0, logits_V / factor, logits_V * factor)
    logits_V = np.where(draw.seen_V, repeated_V, logits_V)
    return logits_V - draw.frequency_penalty * draw.counts_V - draw.presence_penalty * (draw.counts_V > 0)
