"""Host side: draws tiny networks and how each is run: one seed and one number give one trial, always the same.

Read next: checkpoint.py, which writes a trial's files.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

EOS = 5
"""The id that resets n-grams."""
VOCABULARIES = (97, 200, 300, 384, 641, 897)
"""A few numbers of ids, so that trials share the programs of their draws."""
BITS = (2, 2.5, 3, 3.5, 4, 5, 6)


@dataclass(frozen=True)
class Trial:
    """A network and a way to run it.

    text: the text part of config.json. form: how linear maps are stored, "bf16", "f16" or "exl3". published: whether
    names are the published ones, experts fused where they are plain. lanes, context, max_rows: as in fnx_jax.load.
    dtype: "served" or "float32". devices: numbers to run on, several of them in the order in which they are tried.
    lengths: rows of each stream's prompt. replies: tokens of each reply. penalised: whether a stream has penalties.
    """

    seed: int
    number: int
    text: dict[str, Any]
    form: str
    published: bool
    lanes: int
    context: int
    max_rows: int
    dtype: str
    devices: tuple[int, ...]
    lengths: tuple[int, ...]
    replies: tuple[int, ...]
    penalised: bool

    def rng(self, purpose: int) -> np.random.Generator:
        """A stream of numbers for one purpose of this trial."""
        return np.random.default_rng([self.seed, self.number, purpose])


def draw_trial(seed: int, number: int) -> Trial:
    """Draws a trial."""
    rng = np.random.default_rng([seed, number])
    layers = _layers(rng)
    text = _sizes(rng) | _attention(rng) | _delta(rng) | _ngram(rng, layers)
    text |= {"num_hidden_layers": len(layers), "layer_types": layers}
    streams = int(rng.integers(2, 5))
    return Trial(
        seed=seed,
        number=number,
        text=text,
        form=_pick(rng, ("bf16", "f16", "exl3"), (0.4, 0.2, 0.4)),
        published=bool(rng.integers(2)),
        lanes=int(rng.integers(2, 6)),
        context=_pick(rng, (96, 128, 200)),
        max_rows=_pick(rng, (16, 32, 48, 512)),
        dtype=_pick(rng, ("served", "float32"), (0.6, 0.4)),
        devices=_pick(rng, ((1, 2, 4), (1, 4, 2)), (0.4, 0.6)),
        # One prompt outgrows a page and most budgets; the others may be as short as a row.
        lengths=(int(rng.integers(40, 80)), *(int(length) for length in rng.integers(1, 50, streams - 1))),
        replies=tuple(int(count) for count in rng.integers(5, 13, streams)),
        penalised=bool(rng.random() < 0.15),
    )


def _pick(rng: np.random.Generator, options: tuple, chances: tuple[float, ...] | None = None) -> Any:
    return options[int(rng.choice(len(options), p=chances))]


def _layers(rng: np.random.Generator) -> list[str]:
    """Two or three layers, of one kind or of both: compiling a kind is most of a trial's time."""
    count, recurrent = int(rng.choice((2, 3), p=(0.8, 0.2))), "linear_attention"
    sparse = _pick(rng, ("full_attention", "indexed_attention", "qwen_sparse_attention"))
    if rng.random() < 0.6:
        return [_pick(rng, (recurrent, sparse))] * count
    kinds = [recurrent, sparse, *([_pick(rng, (recurrent, sparse))] * (count - 2))]
    return [kinds[i] for i in rng.permutation(count)]


def _sizes(rng: np.random.Generator) -> dict[str, Any]:
    """Widths, streams, experts and vocabulary."""
    experts = _pick(rng, (4, 6, 8, 12, 16, 24, 32, 64))
    return {
        "model_type": "qwen4_exp_text",
        "vocab_size": _pick(rng, VOCABULARIES),
        "hidden_size": _pick(rng, (64, 72, 80, 96, 112, 128, 144, 160, 192, 256)),
        "hc_count": _pick(rng, (1, 2, 3, 4, 5), (0.05, 0.15, 0.1, 0.6, 0.1)),
        "hc_lowrank": int(rng.integers(3, 25)),
        "num_experts": experts,
        "num_experts_per_tok": int(rng.integers(1, min(experts, 8) + 1)),
        "norm_topk_prob": bool(rng.integers(2)),
        "moe_intermediate_size": _pick(rng, (4, 8, 16, 24, 40, 72)),
        "shared_expert_intermediate_size": _pick(rng, (4, 8, 20, 32, 56, 136)),
        "mtp_num_hidden_layers": int(rng.integers(2)),
        "output_gate_type": _pick(rng, ("sigmoid", "silu")),
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": EOS,
        "eos_token_id": EOS,
    }


def _attention(rng: np.random.Generator) -> dict[str, Any]:
    """Query and KV heads, the turning part of a head, the indexer, blocks and how many of them are kept."""
    kv_heads, share = _pick(rng, (1, 2, 4, 3, 8), (0.2, 0.3, 0.3, 0.1, 0.1)), _pick(rng, (1, 2, 3, 4, 6))
    head, index = _pick(rng, (8, 16, 24, 32, 48, 64)), _pick(rng, (8, 16, 24, 32, 64))
    rotary = 2 * int(rng.integers(1, min(head, index) // 2 + 1))
    block = _pick(rng, (1, 2, 3, 4, 6, 8))
    return {
        "num_attention_heads": kv_heads * min(share, 16 // kv_heads),
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": _pick(rng, (1e4, 1e6, 1e7)),
            "partial_rotary_factor": (rotary + 0.5) / head,  # the reader cuts down to a whole number
        },
        "indexer_n_heads": int(rng.integers(1, 7)),
        "indexer_kv_heads": 1,
        "indexer_head_dim": index,
        "indexer_compress_ratio": block,
        "indexer_budget": block * _pick(rng, (1, 2, 3, 5, 8, 16, 20)),
    }


def _delta(rng: np.random.Generator) -> dict[str, Any]:
    """Recurrent heads and their convolution."""
    key_heads = _pick(rng, (1, 2, 4, 3, 8), (0.15, 0.25, 0.4, 0.1, 0.1))
    return {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * _pick(rng, (1, 2, 3)),
        "linear_key_head_dim": _pick(rng, (4, 8, 16, 24, 32)),
        "linear_value_head_dim": _pick(rng, (4, 8, 12, 16, 32)),
        "linear_conv_kernel_dim": _pick(rng, (1, 2, 3, 4, 6), (0.1, 0.15, 0.15, 0.45, 0.15)),
    }


def _ngram(rng: np.random.Generator, layers: list[str]) -> dict[str, Any]:
    """N-gram tables in no layer, in those of one kind, or in every layer."""
    orders, per_order = int(rng.integers(2, 5)), _pick(rng, (1, 2, 4, 8))
    kinds = _pick(rng, (set(), {layers[0]}, set(layers)), (0.15, 0.6, 0.25))
    return {
        "ple_layer_ids": [i + 1 for i, kind in enumerate(layers) if kind in kinds],
        "ple_embed_dim": (orders - 1) * per_order * _pick(rng, (2, 5, 8, 16)),
        "ple_conv_kernel_size": _pick(rng, (1, 2, 3, 4, 5, 8)),
        "ngram_size": orders,
        "heads_per_ngram": per_order,
        "ngram_vocab_size_base": int(rng.integers(20, 300)),
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": _pick(rng, (1, 2, 4)),
        "seed": int(rng.integers(1, 10**6)),
    }
