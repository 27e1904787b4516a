"""Host side: the config files of the full-size network, for packs that hold its shapes and no weights."""


def full_config() -> dict:
    """Returns config.json of the full-size network, without a quantization part.

    Source: the published config of Qwen3.8-Flash-Next.
    """
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "image_token_id": 248056,
        "video_token_id": 248057,
        "vision_start_token_id": 248053,
        "vision_end_token_id": 248054,
        "tie_word_embeddings": False,
        "text_config": _text_config(),
        "vision_config": _vision_config(),
    }


def generation_config() -> dict:
    """Returns generation_config.json: where chats stop, and how they are sampled unless a request says otherwise."""
    return {
        "bos_token_id": 248044,
        "eos_token_id": [248046, 248044],
        "pad_token_id": 248044,
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 20,
        "top_p": 0.95,
    }


def _text_config() -> dict:
    layers, interval = 48, 4
    kinds = ["full_attention" if i % interval == interval - 1 else "linear_attention" for i in range(layers)]
    return (
        {
            "model_type": "qwen4_exp_text",
            "dtype": "bfloat16",
            "vocab_size": 248320,
            "hidden_size": 2560,
            "num_hidden_layers": layers,
            "layer_types": kinds,
            "full_attention_interval": interval,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 262144,
            "initializer_range": 0.02,
            "use_cache": True,
            "tie_word_embeddings": False,
            "bos_token_id": 248044,
            "eos_token_id": 248044,
            "pad_token_id": None,
        }
        | _mixers()
        | _experts()
        | _ngram_embedding()
        | _draft_head()
    )


def _mixers() -> dict:
    """Attention, indexer, gated delta net, hyper-connections."""
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "output_gate_type": "sigmoid",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
        },
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 128,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "hc_count": 4,
        "hc_lowrank": 320,
    }


def _experts() -> dict:
    return {
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 640,
        "shared_expert_intermediate_size": 640,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
    }


def _ngram_embedding() -> dict:
    """`ple_layer_ids` counts from 1."""
    return {
        "ple_layer_ids": [2],
        "ple_embed_dim": 2560,
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": 8,
        "ngram_vocab_size_base": 20000000,
        "make_ngram_vocab_size_divisible_by": 128,
        "split_ngram_parts": 128,
    }


def _draft_head() -> dict:
    return {
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "mtp": {
            "hybrid": True,
            "layer_types": ["full_attention"],
            "num_hidden_layers": 1,
            "rope_theta": 10000000,
            "mtp_use_hidden_state_from_layer": None,
        },
    }


def _vision_config() -> dict:
    return {
        "depth": 27,
        "hidden_size": 1152,
        "num_heads": 16,
        "intermediate_size": 4304,
        "hidden_act": "gelu_pytorch_tanh",
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
        "out_hidden_size": 2560,
    }
