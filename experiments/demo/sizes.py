"""Host side: the sizes of small models of the published shape, and the config files that state them."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """A small model with every mechanism of the full one.

    layers: each fourth is sparse attention. bpe_tokens: ids from the merges, added tokens come right after; the
    rows from there to `vocabulary` have no token.
    """

    vocabulary: int = 4096
    bpe_tokens: int = 3940
    hidden: int = 128
    streams: int = 4
    stream_rank: int = 16
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    head_size: int = 64
    index_heads: int = 4
    index_size: int = 32
    index_budget: int = 64
    delta_key_heads: int = 4
    delta_value_heads: int = 8
    delta_size: int = 32
    experts: int = 16
    active_experts: int = 4
    expert_ffn: int = 128
    shared_ffn: int = 128
    ngram_layer: int = 2
    ngram_base: int = 2000
    ngram_hidden: int = 256
    context: int = 8192

    @property
    def layer_types(self) -> list[str]:
        return ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(self.layers)]


def text_config(sizes: Sizes, reset_id: int) -> dict[str, Any]:
    """The `text_config` of config.json; `reset_id` is the token that resets n-grams."""
    return {
        "model_type": "qwen4_exp_text",
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "layer_types": sizes.layer_types,
        "full_attention_interval": 4,
        "hidden_act": "silu",
        "max_position_embeddings": sizes.context,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_size,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
        },
        "linear_num_key_heads": sizes.delta_key_heads,
        "linear_num_value_heads": sizes.delta_value_heads,
        "linear_key_head_dim": sizes.delta_size,
        "linear_value_head_dim": sizes.delta_size,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "output_gate_type": "sigmoid",
        "num_experts": sizes.experts,
        "num_experts_per_tok": sizes.active_experts,
        "moe_intermediate_size": sizes.expert_ffn,
        "shared_expert_intermediate_size": sizes.shared_ffn,
        "norm_topk_prob": True,
        "hc_count": sizes.streams,
        "hc_lowrank": sizes.stream_rank,
        "indexer_n_heads": sizes.index_heads,
        "indexer_kv_heads": 1,
        "indexer_head_dim": sizes.index_size,
        "indexer_budget": sizes.index_budget,
        "indexer_compress_ratio": 4,
        "ple_layer_ids": [sizes.ngram_layer],
        "ple_embed_dim": sizes.ngram_hidden,
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": 8,
        "ngram_vocab_size_base": sizes.ngram_base,
        "make_ngram_vocab_size_divisible_by": 128,
        "split_ngram_parts": 1,
        "seed": 1234,
        "bos_token_id": reset_id,
        "eos_token_id": reset_id,
        "pad_token_id": None,
        "use_cache": True,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "mtp": {"hybrid": True, "layer_types": ["full_attention"], "num_hidden_layers": 1, "rope_theta": 1e7},
    }


def model_config(sizes: Sizes, token_id: dict[str, int]) -> dict[str, Any]:
    """config.json of a plain checkpoint. `token_id`: ids of the added tokens."""
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "tie_word_embeddings": False,
        "image_token_id": token_id["<|image_pad|>"],
        "video_token_id": token_id["<|video_pad|>"],
        "vision_start_token_id": token_id["<|vision_start|>"],
        "vision_end_token_id": token_id["<|vision_end|>"],
        "text_config": text_config(sizes, token_id["<|endoftext|>"]),
    }


def generation_config(token_id: dict[str, int]) -> dict[str, Any]:
    """generation_config.json: what ends a reply, and how the model is sampled unless a request says otherwise."""
    return {
        "bos_token_id": token_id["<|endoftext|>"],
        "eos_token_id": [token_id["<|im_end|>"], token_id["<|endoftext|>"]],
        "pad_token_id": token_id["<|endoftext|>"],
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 20,
        "top_p": 0.95,
    }
