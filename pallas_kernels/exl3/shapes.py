"""Host side: the layer shapes that the real model uses, by name, and small ones for tests.

Tests, benches and tuning.py name shapes by these. Read next: tuning.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A layer's shape: inputs, outputs, and the bits a weight it is published with."""

    name: str
    in_features: int
    out_features: int
    bits: float = 6


# Qwen3.8-Flash-Next: hidden 2560, expert width 640, vocabulary 248320.
SHAPES = (
    Shape("expert_up", 2560, 640, 4),  # gate_proj and up_proj
    Shape("expert_down", 640, 2560, 4),
    Shape("shared_up", 2560, 640),
    Shape("shared_down", 640, 2560),
    Shape("gdn_qkv", 2560, 10240),
    Shape("gdn_z", 2560, 6144),
    Shape("mix_out", 6144, 2560),  # out_proj of a recurrent block, o_proj of an attention block
    Shape("attention_q", 2560, 12288),
    Shape("attention_kv", 2560, 512),
    Shape("indexer_qk", 2560, 640, 4),
    Shape("mtp_fc", 2560, 2560, 5),
    Shape("head", 2560, 248320),
)

SMALL_SHAPES = (
    Shape("small_square", 128, 128, 4),
    Shape("small_wide", 128, 384, 2.5),
    Shape("small_tall", 384, 128, 3),
)
