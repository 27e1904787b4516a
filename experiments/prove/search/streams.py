"""Host side: a trial's requests. Read next: checks.py."""

from dataclasses import replace

import numpy as np

from experiments.prove.search.trials import EOS, Trial
from fnx_jax.engine.request import Request, SamplingParams

SAMPLINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, top_k=20, top_p=0.95),
    SamplingParams(temperature=1.2),
    SamplingParams(temperature=0.9, min_p=0.02),
)
PENALISED = SamplingParams(temperature=0.8, repetition_penalty=1.2, presence_penalty=0.5)


def draw_requests(trial: Trial) -> tuple[Request, ...]:
    """The trial's streams: unlike first tokens, repeated stretches, resets, each with a sampling of its own."""
    rng, vocabulary = trial.rng(1), trial.text["vocab_size"]
    firsts = rng.permutation(np.arange(EOS + 1, vocabulary))
    requests = []
    for i, (length, replied) in enumerate(zip(trial.lengths, trial.replies, strict=True)):
        prompt = rng.integers(0, vocabulary, length)
        half = length // 2
        prompt[half : 2 * half] = prompt[:half]  # n-grams and keys that come again
        prompt[rng.random(length) < 0.04] = EOS
        prompt[0] = firsts[i]
        kind = PENALISED if trial.penalised and i == 1 else SAMPLINGS[i % len(SAMPLINGS)]
        sampling = replace(kind, seed=int(rng.integers(2**63)), max_tokens=replied)
        requests.append(Request(f"stream {i}", tuple(map(int, prompt)), sampling))
    return tuple(requests)
