"""Host side: the requests that every cell serves. Their prompts and seeds hang on the seed of the run alone.

Lengths cross tiles, pages and the selection budget of small models; samplings take every way through the draw.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fnx_jax.engine.request import Request, SamplingParams

SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "top_k": 20, "top_p": 0.95},
    "unfiltered": {"temperature": 1.3, "prompt_logprobs": 0},
    "penalised": {"temperature": 0.8, "min_p": 0.02, "presence_penalty": 1.0, "repetition_penalty": 1.2, "logprobs": 2},
}


@dataclass(frozen=True)
class Workload:
    """Requests of these prompt lengths, each with a reply of as many tokens. seed: of prompts and draws.

    The first two begin with the same half of a prompt, as kept prompts would have it.
    """

    prompts: tuple[int, ...]
    replies: tuple[int, ...]
    seed: int = 0

    @property
    def positions(self) -> int:
        """Positions that the longest of them takes."""
        return max(prompt + reply for prompt, reply in zip(self.prompts, self.replies, strict=True))

    def requests(self, valid: np.ndarray, sampling: str) -> list[Request]:
        """The requests under one of SAMPLINGS. valid: bool [V], the ids that have a token."""
        ids = np.flatnonzero(valid)
        common = np.random.default_rng([self.seed, 0]).choice(ids, max(self.prompts))
        made = []
        for i, (length, reply) in enumerate(zip(self.prompts, self.replies, strict=True)):
            prompt = np.random.default_rng([self.seed, i + 1]).choice(ids, length)
            if i < 2:
                prompt[: length // 2] = common[: length // 2]
            params = SamplingParams(
                seed=(self.seed << 16) + i, max_tokens=reply, ignore_eos=True, **SAMPLINGS[sampling]
            )
            made.append(Request(f"stream {i}", tuple(int(token) for token in prompt), params))
        return made


ORDINARY = Workload(prompts=(70, 37, 5, 18), replies=(8, 10, 16, 12))
SHORT = Workload(prompts=(35, 18, 5, 16), replies=(5, 6, 8, 6))
ORIGIN = Workload(prompts=(384, 256, 128, 192), replies=(24, 24, 24, 24))
"""What is served by default, by --quick, and by --preset=origin: long prompts, replies compared to their end."""
