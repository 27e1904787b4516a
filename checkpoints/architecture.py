"""Host side: the tensors that a network of this architecture has, by name and logical shape, from its config alone.

Nothing here looks at a file. A linear map is listed once, whatever form a file keeps it in. Read next: inventory.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from checkpoints.errors import CheckpointError
from checkpoints.naming import (
    EXPERT_PROJECTIONS,
    LINEAR_ATTENTION,
    MTP_PREFIX,
    expert_prefix,
    layer_kinds,
    positive_int,
)
from checkpoints.ngram_hash import configured_hash


@dataclass(frozen=True, slots=True)
class Linear:
    """A map y = x @ W.T without a bias. name: the module's, without a trailing dot. shape: [out, in] of W."""

    name: str
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Plain:
    """A tensor that is only ever stored as floats. name: the tensor's. shape: as stored."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of one layer. prefix: the layer's, dot included. count: experts. hidden, ffn: their sizes."""

    prefix: str
    count: int
    hidden: int
    ffn: int

    def linears(self) -> Iterator[Linear]:
        """Yields the three projections of every expert."""
        for expert in range(self.count):
            for projection in EXPERT_PROJECTIONS:
                inner = (self.hidden, self.ffn) if projection == "down_proj" else (self.ffn, self.hidden)
                yield Linear(expert_prefix(self.prefix, expert, projection), inner)


@dataclass(frozen=True, slots=True)
class Table:
    """One hashed n-gram table.

    prefix: its module's, dot included. rows, row_dim: of the whole table. shards: pieces where it is stored in pieces,
    of equal rows. multipliers: of the hash, one a token of the longest n-gram. sizes, offsets: rows of each head.
    """

    prefix: str
    rows: int
    row_dim: int
    shards: int
    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]


Part = Linear | Plain | Experts | Table


def parts(text: dict, prefix: str, mtp_layers: int) -> Iterator[Part]:
    """Yields everything the network has.

    Args:
      text: the text part of config.json. prefix: the text model's, dot included. mtp_layers: of the draft head, 0 for
        none.
    Raises: CheckpointError where the config lacks a size or contradicts itself.
    """
    H, V = positive_int(text, "hidden_size"), positive_int(text, "vocab_size")
    yield Plain(f"{prefix}embed_tokens.weight", (V, H))
    yield Linear("lm_head", (V, H))
    yield from _hyper_connection(text, f"{prefix}hyper_connection_mixer.")
    for i, kind in enumerate(layer_kinds(text)):
        layer = f"{prefix}layers.{i}."
        mixer = _gated_delta if kind == LINEAR_ATTENTION else _sparse_attention
        yield from mixer(text, layer)
        yield from _layer(text, layer)
    for q, i in enumerate(_table_layers(text)):
        yield from _ngram_embedding(text, f"{prefix}layers.{i}.ple.", q)
    if mtp_layers:
        yield from _draft_head(text, mtp_layers)


def configured_mtp_layers(text: dict) -> int:
    """Returns the layers of the draft head that a text config names; raises CheckpointError for no such number."""
    nested = text.get("mtp")
    fallback = nested.get("num_hidden_layers", 0) if isinstance(nested, dict) else 0
    layers = text.get("mtp_num_hidden_layers", fallback) or 0
    if type(layers) is not int or layers < 0:
        raise CheckpointError(f"config.json: mtp_num_hidden_layers must be a number of layers, not {layers!r}")
    return layers


def _layer(text: dict, layer: str) -> Iterator[Part]:
    """What every layer has besides its mixer: two hyper-connections, router, experts, shared expert."""
    H, E = positive_int(text, "hidden_size"), positive_int(text, "num_experts")
    shared = positive_int(text, "shared_expert_intermediate_size")
    yield from _hyper_connection(text, f"{layer}attn_hyper_connection.", inject=True)
    yield from _hyper_connection(text, f"{layer}mlp_hyper_connection.", inject=True)
    yield Linear(f"{layer}mlp.gate", (E, H))
    yield Linear(f"{layer}mlp.shared_expert_gate", (1, H))
    yield Linear(f"{layer}mlp.shared_expert.gate_proj", (shared, H))
    yield Linear(f"{layer}mlp.shared_expert.up_proj", (shared, H))
    yield Linear(f"{layer}mlp.shared_expert.down_proj", (H, shared))
    yield Experts(layer, E, H, positive_int(text, "moe_intermediate_size"))


def _hyper_connection(text: dict, prefix: str, inject: bool = False) -> Iterator[Part]:
    streams, rank = positive_int(text, "hc_count"), positive_int(text, "hc_lowrank")
    width = streams * positive_int(text, "hidden_size")
    yield Plain(f"{prefix}hc_norm.weight", (width,))
    yield Linear(f"{prefix}input_mix_weight_down", (rank, width))
    yield Linear(f"{prefix}input_mix_weight_up", (width, rank))
    if inject:
        yield Linear(f"{prefix}block_inject_weight", (streams, width))


def _gated_delta(text: dict, layer: str) -> Iterator[Part]:
    H, heads = positive_int(text, "hidden_size"), positive_int(text, "linear_num_value_heads")
    value_head = positive_int(text, "linear_value_head_dim")
    keys = positive_int(text, "linear_num_key_heads") * positive_int(text, "linear_key_head_dim")
    values, module = heads * value_head, f"{layer}linear_attn."
    channels = 2 * keys + values
    yield Plain(f"{module}A_log", (heads,))
    yield Plain(f"{module}dt_bias", (heads,))
    yield Plain(f"{module}conv1d.weight", (channels, 1, positive_int(text, "linear_conv_kernel_dim")))
    yield Plain(f"{module}norm.weight", (value_head,))
    yield Linear(f"{module}in_proj_qkv", (channels, H))
    yield Linear(f"{module}in_proj_z", (values, H))
    yield Linear(f"{module}in_proj_a", (heads, H))
    yield Linear(f"{module}in_proj_b", (heads, H))
    yield Linear(f"{module}out_proj", (H, values))


def _sparse_attention(text: dict, layer: str) -> Iterator[Part]:
    H, K = positive_int(text, "hidden_size"), positive_int(text, "head_dim")
    queries, keys = positive_int(text, "num_attention_heads") * K, positive_int(text, "num_key_value_heads") * K
    index_dim, module = positive_int(text, "indexer_head_dim"), f"{layer}self_attn."
    index_heads = positive_int(text, "indexer_n_heads") + positive_int(text, "indexer_kv_heads", 1)
    yield Linear(f"{module}q_proj", (2 * queries, H))  # each head's query and its output gate
    yield Linear(f"{module}k_proj", (keys, H))
    yield Linear(f"{module}v_proj", (keys, H))
    yield Linear(f"{module}o_proj", (H, queries))
    yield Plain(f"{module}q_norm.weight", (K,))
    yield Plain(f"{module}k_norm.weight", (K,))
    yield Linear(f"{module}indexer.index_qk_proj", (index_heads * index_dim, H))
    yield Plain(f"{module}indexer.q_layernorm.weight", (index_dim,))
    yield Plain(f"{module}indexer.k_layernorm.weight", (index_dim,))


def _ngram_embedding(text: dict, module: str, q: int) -> Iterator[Part]:
    """The q-th table and what mixes its rows into the streams."""
    H, embed = positive_int(text, "hidden_size"), positive_int(text, "ple_embed_dim")
    width = positive_int(text, "hc_count") * H
    yield Linear(f"{module}key_proj", (width, embed))
    yield Linear(f"{module}value_proj", (H, embed))
    for norm in ("norm_key", "norm_query", "norm_conv"):
        yield Plain(f"{module}{norm}.weight", (width,))
    yield Plain(f"{module}conv1d.weight", (width, 1, positive_int(text, "ple_conv_kernel_size")))
    yield _table(text, f"{module}ple_embedding.", q, embed)


def _table(text: dict, prefix: str, q: int, embed: int) -> Table:
    multipliers, sizes, offsets = configured_hash(text, q)
    multiple = positive_int(text, "make_ngram_vocab_size_divisible_by", 1)
    shards = positive_int(text, "split_ngram_parts", 1)
    rows = -(-int(sizes.sum()) // multiple) * multiple
    if embed % len(sizes) or rows % shards:
        raise CheckpointError(
            f"config.json: ple_embed_dim {embed} over {len(sizes)} heads, {rows} n-gram rows over {shards} parts: "
            f"neither may leave a rest"
        )
    constants = (tuple(vector.tolist()) for vector in (multipliers, sizes, offsets))
    return Table(prefix, rows, embed // len(sizes), shards, *constants)


def _table_layers(text: dict) -> list[int]:
    """Layers with an n-gram table, from 0; the config counts them from 1."""
    layers = text.get("ple_layer_ids") or []
    count = positive_int(text, "num_hidden_layers")
    if not isinstance(layers, list) or not all(type(layer) is int and 1 <= layer <= count for layer in layers):
        raise CheckpointError(f"config.json: ple_layer_ids must be layers from 1 to {count}, not {layers!r}")
    return sorted({layer - 1 for layer in layers})


def _draft_head(text: dict, layers: int) -> Iterator[Part]:
    H = positive_int(text, "hidden_size")
    yield Linear(f"{MTP_PREFIX}fc_embedding", (H, H))
    yield Linear(f"{MTP_PREFIX}fc_hidden", (H, H))
    yield Plain(f"{MTP_PREFIX}pre_fc_norm_embedding.weight", (H,))
    yield Plain(f"{MTP_PREFIX}pre_fc_norm_hidden.weight", (positive_int(text, "hc_count") * H,))
    yield from _hyper_connection(text, f"{MTP_PREFIX}hyper_connection_mixer.")
    for i in range(layers):
        yield from _sparse_attention(text, f"{MTP_PREFIX}layers.{i}.")
        yield from _layer(text, f"{MTP_PREFIX}layers.{i}.")
