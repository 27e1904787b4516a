"""Host side: the parameter tree written once, and which file tensor fills which leaf.

`model_params` walks the tree top to bottom and asks a `Leaves` for every leaf by its name in the published layout;
loading, and anything else that needs the tree, is one `Leaves`.
"""

from typing import Any, Protocol

from checkpoints.naming import MTP_PREFIX
from fnx_jax.families.flash_next.config import FlashNextConfig
from fnx_jax.families.flash_next.params import (
    AttentionParams,
    DeltaParams,
    LayerParams,
    ModelParams,
    MoeParams,
    MtpParams,
    SharedExpertParams,
)
from fnx_jax.families.flash_next.shards import (
    Columns,
    Shards,
    delta_columns,
    kv_columns,
    query_columns,
    value_columns,
    vocabulary_columns,
)
from pallas_kernels.dense_matmul import Weight
from pallas_kernels.expert_matmul import ExpertLines, LineMap
from pallas_kernels.gated_delta import DeltaWeights
from pallas_kernels.hyper_connection import HyperWeights
from pallas_kernels.ngram_mix import NgramWeights


class Leaves(Protocol):
    """Where leaves come from. Names are the file's, without `.weight` for linears; shapes are logical."""

    def plain(self, name: str, shape: tuple[int, ...], rows: Columns | None = None) -> Any:
        """A tensor as it is; `rows` deals its first axis."""
        ...

    def centred(self, name: str, shape: tuple[int, ...]) -> Any:
        """A norm weight that must lie around zero."""
        ...

    def conv(self, name: str, channels: int, taps: int, rows: Columns | None = None) -> Any:
        """A depthwise convolution: [channels, 1, taps] in the file, [channels, taps] here; `rows` deals channels."""
        ...

    def linear(self, prefix: str, outputs: int, inputs: int, columns: Columns | None = None) -> Weight:
        """A linear layer [outputs, inputs], plain or EXL3, whichever the file holds; `columns` deals its outputs."""
        ...

    def experts(self, layer_prefix: str, config: FlashNextConfig, shards: Shards) -> tuple[ExpertLines, LineMap]:
        """A layer's routed experts, dealt by id, and where each lies."""
        ...


def model_params(config: FlashNextConfig, shards: Shards, leaves: Leaves, prefix: str, with_mtp: bool) -> ModelParams:
    """Builds the whole tree. prefix: of the text model, dot included."""
    layers = tuple(layer_params(config, shards, leaves, f"{prefix}layers.{i}.", i) for i in range(config.layers))
    return ModelParams(
        embedding=leaves.plain(f"{prefix}embed_tokens.weight", (config.vocabulary, config.hidden)),
        layers=layers,
        mixer=final_mixer(config, leaves, prefix),
        head=leaves.linear("lm_head", config.vocabulary, config.hidden, vocabulary_columns(config, shards)),
        mtp=mtp_params(config, shards, leaves) if with_mtp else None,
    )


def final_mixer(config: FlashNextConfig, leaves: Leaves, prefix: str) -> HyperWeights:
    """What the head reads through; prefix as in `model_params`."""
    return _hyper(config, leaves, f"{prefix}hyper_connection_mixer.", inject=False)


def layer_params(config: FlashNextConfig, shards: Shards, leaves: Leaves, prefix: str, layer: int) -> LayerParams:
    """One decoder layer of the main model; prefix ends with a dot."""
    build = _delta if config.layer_kinds[layer] == "delta" else _attention
    mixer = build(config, shards, leaves, prefix)
    ngram = _ngram(config, leaves, prefix + "ple.") if layer in config.ngram_layers else None
    return _layer(config, shards, leaves, prefix, mixer, ngram)


def mtp_params(config: FlashNextConfig, shards: Shards, leaves: Leaves) -> MtpParams:
    """The draft head."""
    width, prefix = config.streams * config.hidden, f"{MTP_PREFIX}layers.0."
    return MtpParams(
        fc_embedding=leaves.linear(MTP_PREFIX + "fc_embedding", config.hidden, config.hidden),
        fc_hidden=leaves.linear(MTP_PREFIX + "fc_hidden", config.hidden, config.hidden),
        norm_embedding=leaves.centred(MTP_PREFIX + "pre_fc_norm_embedding.weight", (config.hidden,)),
        norm_hidden=leaves.centred(MTP_PREFIX + "pre_fc_norm_hidden.weight", (width,)),
        layer=_layer(config, shards, leaves, prefix, _attention(config, shards, leaves, prefix), None),
        mixer=_hyper(config, leaves, MTP_PREFIX + "hyper_connection_mixer.", inject=False),
    )


def _layer(
    config: FlashNextConfig,
    shards: Shards,
    leaves: Leaves,
    prefix: str,
    mixer: DeltaParams | AttentionParams,
    ngram: NgramWeights | None,
) -> LayerParams:
    return LayerParams(
        mixer_hyper=_hyper(config, leaves, prefix + "attn_hyper_connection.", inject=True),
        moe_hyper=_hyper(config, leaves, prefix + "mlp_hyper_connection.", inject=True),
        mixer=mixer,
        moe=_moe(config, shards, leaves, prefix),
        ngram=ngram,
    )


def _hyper(config: FlashNextConfig, leaves: Leaves, prefix: str, inject: bool) -> HyperWeights:
    width = config.streams * config.hidden
    return HyperWeights(
        norm=leaves.centred(prefix + "hc_norm.weight", (width,)),
        down=leaves.linear(prefix + "input_mix_weight_down", config.stream_rank, width),
        up=leaves.linear(prefix + "input_mix_weight_up", width, config.stream_rank),
        inject=leaves.linear(prefix + "block_inject_weight", config.streams, width) if inject else None,
        rank=config.stream_rank,
    )


def _delta(config: FlashNextConfig, shards: Shards, leaves: Leaves, layer_prefix: str) -> DeltaParams:
    prefix = layer_prefix + "linear_attn."
    heads, values = config.delta_value_heads, config.delta_value_heads * config.delta_value_size
    channels, per_head = delta_columns(config, shards), value_columns(config, shards, 1)
    head_values = value_columns(config, shards, config.delta_value_size)
    return DeltaParams(
        qkv=leaves.linear(prefix + "in_proj_qkv", config.delta_channels, config.hidden, channels),
        z=leaves.linear(prefix + "in_proj_z", values, config.hidden, head_values),
        a=leaves.linear(prefix + "in_proj_a", heads, config.hidden, per_head),
        b=leaves.linear(prefix + "in_proj_b", heads, config.hidden, per_head),
        out=leaves.linear(prefix + "out_proj", config.hidden, values),
        rule=DeltaWeights(
            conv_CT=leaves.conv(prefix + "conv1d.weight", config.delta_channels, config.delta_taps, channels),
            decay_log=leaves.plain(prefix + "A_log", (heads,), per_head),
            time_bias=leaves.plain(prefix + "dt_bias", (heads,), per_head),
        ),
        norm=leaves.plain(prefix + "norm.weight", (config.delta_value_size,)),
    )


def _attention(config: FlashNextConfig, shards: Shards, leaves: Leaves, layer_prefix: str) -> AttentionParams:
    prefix, size = layer_prefix + "self_attn.", config.head_size
    keys = config.kv_heads * size
    index = (config.index_heads + 1) * config.index_size
    return AttentionParams(
        q=leaves.linear(prefix + "q_proj", 2 * config.heads * size, config.hidden, query_columns(config, shards)),
        k=leaves.linear(prefix + "k_proj", keys, config.hidden, kv_columns(config, shards)),
        v=leaves.linear(prefix + "v_proj", keys, config.hidden, kv_columns(config, shards)),
        o=leaves.linear(prefix + "o_proj", config.hidden, config.heads * size),
        index=leaves.linear(prefix + "indexer.index_qk_proj", index, config.hidden),
        q_norm=leaves.centred(prefix + "q_norm.weight", (size,)),
        k_norm=leaves.centred(prefix + "k_norm.weight", (size,)),
        index_q_norm=leaves.centred(prefix + "indexer.q_layernorm.weight", (config.index_size,)),
        index_k_norm=leaves.centred(prefix + "indexer.k_layernorm.weight", (config.index_size,)),
    )


def _moe(config: FlashNextConfig, shards: Shards, leaves: Leaves, layer_prefix: str) -> MoeParams:
    prefix = layer_prefix + "mlp."
    lines, line_map = leaves.experts(layer_prefix, config, shards)
    return MoeParams(
        router=leaves.plain(prefix + "gate.weight", (config.experts, config.hidden)),
        shared=SharedExpertParams(
            gate=leaves.linear(prefix + "shared_expert.gate_proj", config.shared_ffn, config.hidden),
            up=leaves.linear(prefix + "shared_expert.up_proj", config.shared_ffn, config.hidden),
            down=leaves.linear(prefix + "shared_expert.down_proj", config.hidden, config.shared_ffn),
            scale=leaves.linear(prefix + "shared_expert_gate", 1, config.hidden),
        ),
        lines=lines,
        line_map=line_map,
    )


def _ngram(config: FlashNextConfig, leaves: Leaves, prefix: str) -> NgramWeights:
    width = config.streams * config.hidden
    return NgramWeights(
        key=leaves.linear(prefix + "key_proj", width, config.ngram_hidden),
        value=leaves.linear(prefix + "value_proj", config.hidden, config.ngram_hidden),
        norm_key=leaves.centred(prefix + "norm_key.weight", (width,)),
        norm_query=leaves.centred(prefix + "norm_query.weight", (width,)),
        norm_conv=leaves.centred(prefix + "norm_conv.weight", (width,)),
        conv_CT=leaves.conv(prefix + "conv1d.weight", width, config.ngram_taps),
    )
