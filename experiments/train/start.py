"""Host side: parameters to begin training with, float32, every leaf drawn from a stream of its own.

Read next: network.py.
"""

from typing import Any
from zlib import crc32

import numpy as np
from jaxtyping import Float32

from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import ModelParams
from fnx_jax.families.flash_next.shards import deal
from fnx_jax.families.flash_next.weights import model_params
from pallas_kernels.expert_matmul import ExpertLines

PREFIX = "model.language_model."
GAINS = {"out_proj": 0.5, "o_proj": 0.5, "down_proj": 0.5, "input_mix_weight_up": 0.1, "block_inject_weight": 0.1}
"""Standard deviation times sqrt(fan in) by the end of the name: what adds to the streams begins small."""
EXPERTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


class DrawnLeaves:
    """Leaves for `model_params`: linears drawn from a normal distribution, norms at their neutral value."""

    def __init__(self, seed: int):
        self._seed = seed

    def plain(self, name: str, shape: tuple[int, ...], rows: Any = None) -> Float32[np.ndarray, "..."]:
        rng = self._rng(name)
        if name.endswith("A_log"):
            return np.log(rng.uniform(0.02, 2.0, shape)).astype(np.float32)
        if name.endswith("dt_bias"):
            return rng.normal(-1.0, 1.0, shape).astype(np.float32)
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        if name.endswith("embed_tokens.weight"):
            return rng.normal(0, 0.5, shape).astype(np.float32)
        return self.linear(name, *shape)

    def centred(self, name: str, shape: tuple[int, ...]) -> Float32[np.ndarray, "..."]:
        return np.zeros(shape, np.float32)

    def conv(self, name: str, channels: int, taps: int, rows: Any = None) -> Float32[np.ndarray, "C taps"]:
        """Mostly the current row."""
        value = self._rng(name).normal(0, 0.2, (channels, taps))
        value[:, -1] += 0.7
        return value.astype(np.float32)

    def linear(self, prefix: str, outputs: int, inputs: int, columns: Any = None) -> Any:
        """float32 [outputs, inputs]."""
        gain = next((gain for end, gain in GAINS.items() if prefix.endswith(end)), 1.0)
        return self._rng(prefix).normal(0, gain / np.sqrt(inputs), (outputs, inputs)).astype(np.float32)

    def experts(self, layer_prefix: str, config: FlashNextConfig, shards: Any) -> tuple[ExpertLines, Any]:
        """One pool a projection, lines in the order of the experts; no map, which would only say so."""
        pools: dict[str, Any] = {}
        for name, projection in EXPERTS.items():
            shape = (config.hidden, config.expert_ffn) if name == "down" else (config.expert_ffn, config.hidden)
            drawn = [self.linear(f"{layer_prefix}mlp.experts.{e}.{projection}", *shape) for e in range(config.experts)]
            pools[name] = (np.stack(drawn),)
        return ExpertLines(**pools), None

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, crc32(name.encode())])


def first_params(config: FlashNextConfig, seed: int) -> ModelParams:
    """The whole tree, its draft head included."""
    return model_params(config, deal(config, 1), DrawnLeaves(seed), PREFIX, True)


def first_table(rows: int, config: FlashNextConfig, seed: int) -> Float32[np.ndarray, "rows row_dim"]:
    """The n-gram table, nearly zero."""
    rng = np.random.default_rng([seed, crc32(b"table")])
    return rng.normal(0, 0.02, (rows, config.ngram_hidden // config.ngram_heads)).astype(np.float32)
