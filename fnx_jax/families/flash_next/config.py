"""Host side: the facts of a qwen4_exp architecture, read from config.json; nothing about how it is run.

Read next: weights.py (the parameter tree), forward.py (the network).
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

from checkpoints.errors import CheckpointError
from checkpoints.naming import LINEAR_ATTENTION, layer_kinds, text_config

LayerKind = Literal["delta", "attention"]


@dataclass(frozen=True)
class FlashNextConfig:
    """Sizes and choices of one checkpoint's text model; hashable, static under jit.

    layer_kinds: one entry a layer. ngram_layers: layer indices, ascending, that an n-gram embedding enters.
    rotary_size: dimensions of a head that turn. index_budget: tokens of kept blocks. block: tokens of a block.
    eos_token_ids: the first of these resets n-grams; ends of replies come from generation_config.
    delta_gate: activation of the recurrent layers' output gate.
    """

    vocabulary: int
    hidden: int
    streams: int
    stream_rank: int
    layer_kinds: tuple[LayerKind, ...]
    ngram_layers: tuple[int, ...]
    heads: int
    kv_heads: int
    head_size: int
    rotary_size: int
    rope_theta: float
    index_heads: int
    index_size: int
    index_budget: int
    block: int
    delta_key_heads: int
    delta_value_heads: int
    delta_key_size: int
    delta_value_size: int
    delta_taps: int
    delta_gate: Literal["sigmoid", "silu"]
    experts: int
    active_experts: int
    expert_ffn: int
    shared_ffn: int
    normalise_picks: bool
    ngram_size: int
    ngram_heads_per_order: int
    ngram_base: int
    ngram_hidden: int
    ngram_taps: int
    ngram_seed: int
    mtp_layers: int
    norm_eps: float
    max_context: int
    eos_token_ids: tuple[int, ...]

    @property
    def layers(self) -> int:
        """Decoder layers of the main model."""
        return len(self.layer_kinds)

    @property
    def delta_layers(self) -> int:
        """Gated DeltaNet layers."""
        return self.layer_kinds.count("delta")

    @property
    def attention_layers(self) -> int:
        """Sparse attention layers of the main model; a draft head adds one cache plane behind them."""
        return self.layer_kinds.count("attention")

    @property
    def delta_channels(self) -> int:
        """Convolution channels of a recurrent layer: queries, keys and values side by side."""
        return 2 * self.delta_key_heads * self.delta_key_size + self.delta_value_heads * self.delta_value_size

    @property
    def kept_blocks(self) -> int:
        """Most blocks a row may keep."""
        return self.index_budget // self.block

    @property
    def ngram_heads(self) -> int:
        """Rows of the n-gram table that one token reads."""
        return (self.ngram_size - 1) * self.ngram_heads_per_order

    @property
    def leaves(self) -> int:
        """Leaves of the expert sum: 64, or the largest power of two up to 64 that divides the experts."""
        return next(count for count in (64, 32, 16, 8, 4, 2, 1) if self.experts % count == 0)

    def index_in_kind(self, layer: int) -> int:
        """Which of the layers of its kind `layer` is: its plane in the caches of that kind."""
        return self.layer_kinds[:layer].count(self.layer_kinds[layer])


def read_config(config: dict[str, Any]) -> FlashNextConfig:
    """Reads config.json (nested or flat). Raises CheckpointError naming the key that is missing or out of range."""
    try:
        return _read(text_config(config))
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"config.json: a value of the wrong kind: {error}") from error


def _read(text: dict[str, Any]) -> FlashNextConfig:
    rope = _rope(text)
    head_size = _need(text, "head_dim")
    config_ = FlashNextConfig(
        vocabulary=_need(text, "vocab_size"),
        hidden=_need(text, "hidden_size"),
        streams=_need(text, "hc_count"),
        stream_rank=_need(text, "hc_lowrank"),
        layer_kinds=tuple("delta" if kind == LINEAR_ATTENTION else "attention" for kind in layer_kinds(text)),
        ngram_layers=tuple(sorted({layer - 1 for layer in text.get("ple_layer_ids") or ()})),
        heads=_need(text, "num_attention_heads"),
        kv_heads=_need(text, "num_key_value_heads"),
        head_size=head_size,
        rotary_size=int(head_size * rope.get("partial_rotary_factor", 1.0)),
        rope_theta=float(_need(rope, "rope_theta")),
        index_heads=_need(text, "indexer_n_heads"),
        index_size=_need(text, "indexer_head_dim"),
        index_budget=_need(text, "indexer_budget"),
        block=_need(text, "indexer_compress_ratio"),
        delta_key_heads=_need(text, "linear_num_key_heads"),
        delta_value_heads=_need(text, "linear_num_value_heads"),
        delta_key_size=_need(text, "linear_key_head_dim"),
        delta_value_size=_need(text, "linear_value_head_dim"),
        delta_taps=_need(text, "linear_conv_kernel_dim"),
        delta_gate=_gate(text),
        experts=_need(text, "num_experts"),
        active_experts=_need(text, "num_experts_per_tok"),
        expert_ffn=_need(text, "moe_intermediate_size"),
        shared_ffn=_need(text, "shared_expert_intermediate_size"),
        normalise_picks=bool(text.get("norm_topk_prob", True)),
        ngram_size=_need(text, "ngram_size"),
        ngram_heads_per_order=_need(text, "heads_per_ngram"),
        ngram_base=_need(text, "ngram_vocab_size_base"),
        ngram_hidden=_need(text, "ple_embed_dim"),
        ngram_taps=_need(text, "ple_conv_kernel_size"),
        ngram_seed=int(text.get("seed", 1234)),
        mtp_layers=int(text.get("mtp_num_hidden_layers") or 0),
        norm_eps=float(text.get("rms_norm_eps", 1e-6)),
        max_context=_need(text, "max_position_embeddings"),
        eos_token_ids=_ids(text.get("eos_token_id")),
    )
    _check(config_, text)
    return config_


def _need(table: dict[str, Any], key: str) -> Any:
    if table.get(key) is None:
        raise CheckpointError(f"config.json: {key} is missing")
    return table[key]


def _rope(text: dict[str, Any]) -> dict[str, Any]:
    """The rotary parameters: those of `rope_scaling` or `rope_parameters`, then those beside them."""
    nested = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind = nested.get("rope_type") or nested.get("type") or "default"
    if kind != "default":
        raise CheckpointError(f"config.json: rope_type {kind!r} is not default")
    beside = {key: text[key] for key in ("rope_theta", "partial_rotary_factor") if text.get(key) is not None}
    return beside | nested


def _gate(text: dict[str, Any]) -> Literal["sigmoid", "silu"]:
    gate = text.get("output_gate_type") or text.get("hidden_act", "silu")
    if gate not in ("sigmoid", "silu"):
        raise CheckpointError(f"config.json: output_gate_type {gate!r} is not sigmoid or silu")
    return gate


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value or ())


def _check(config: FlashNextConfig, text: dict[str, Any]) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        floor = 0 if field.name in ("mtp_layers", "ngram_seed") else 1
        if isinstance(value, int) and not isinstance(value, bool) and value < floor:
            raise CheckpointError(f"config.json: {field.name} is {value}, at least {floor} is needed")
    faults = {
        f"mtp_num_hidden_layers is {config.mtp_layers}, a draft head of one layer is known": config.mtp_layers > 1,
        "num_attention_heads is not a multiple of num_key_value_heads": config.heads % config.kv_heads,
        "linear_num_value_heads is not a multiple of linear_num_key_heads": config.delta_value_heads
        % config.delta_key_heads,
        "indexer_budget is not a multiple of indexer_compress_ratio": config.index_budget % config.block,
        "indexer_kv_heads is not 1": text.get("indexer_kv_heads", 1) != 1,
        "num_experts_per_tok exceeds num_experts": config.active_experts > config.experts,
        "ngram_size is below 2": config.ngram_layers and config.ngram_size < 2,
        "ple_embed_dim is not a multiple of the n-gram heads": config.ngram_layers
        and config.ngram_hidden % max(config.ngram_heads, 1),
        "eos_token_id is missing, which resets n-grams": config.ngram_layers and not config.eos_token_ids,
        "ple_layer_ids name a layer that does not exist": not all(0 <= i < config.layers for i in config.ngram_layers),
        "the rotary width is odd or exceeds a head": config.rotary_size % 2
        or config.rotary_size > min(config.head_size, config.index_size),
        f"hidden_act {text.get('hidden_act')!r} is not silu": text.get("hidden_act", "silu") != "silu",
        "tie_word_embeddings is set": bool(text.get("tie_word_embeddings", False)),
    }
    for fault, present in faults.items():
        if present:
            raise CheckpointError(f"config.json: {fault}")
