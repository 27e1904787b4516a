"""Host side: the demo's tensors, random but for a planted path from each token to its successors. Read next: files.py.

The head is random. The embedding of a token points at the head rows of its successors, so that a stream that still
resembles the embedding chooses one of them, and what the blocks add decides which. The draft head passes the
embedding on, so that it often, not always, makes the same choice.
"""

from collections.abc import Sequence
from zlib import crc32

import ml_dtypes
import numpy as np
from jaxtyping import Int

from checkpoints.ngram_hash import derive_hash
from experiments.demo.exl3_writer import Linear, identity_linear, matrix, random_linear
from experiments.demo.sizes import Sizes

PREFIX = "model.language_model."
BF16, F16 = ml_dtypes.bfloat16, np.float16
PULL = (1.0, 0.85, 0.7)
"""How strongly an embedding points at its first, second and third successor."""
HEAD_GAIN = 5.0
"""Length of a head row; that of quiet ids is a tenth."""
GAINS = {
    "in_proj_qkv": 2.0,
    "in_proj_z": 2.0,
    "in_proj_a": 1.5,
    "in_proj_b": 1.5,
    "out_proj": 0.6,
    "q_proj": 1.5,
    "k_proj": 1.5,
    "v_proj": 2.0,
    "o_proj": 1.4,
    "mlp.gate": 4.0,
    "gate_proj": 3.0,
    "up_proj": 3.0,
    "down_proj": 0.15,
    "shared_expert_gate": 2.0,
    "key_proj": 2.0,
    "value_proj": 0.2,
    "input_mix_weight_down": 3.0,
    "input_mix_weight_up": 2.0,
    "hyper_connection_mixer.input_mix_weight_up": 1.0,
    "block_inject": 2.0,
    "fc_hidden": 0.3,
}
"""Standard deviation of a linear map times sqrt(fan in), by the longest part of the name that fits."""


class Writer:
    """Draws tensors; each from a stream of its own, so that none depends on the others."""

    def __init__(self, sizes: Sizes, seed: int):
        self.sizes, self.seed = sizes, seed
        self.tensors: dict[str, np.ndarray] = {}

    def rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, crc32(name.encode())])

    def plain(self, name: str, shape: tuple[int, ...], dtype: type) -> None:
        """A linear map that stays unquantised, [out, in]."""
        values = self.rng(name).normal(0, _gain(name) / np.sqrt(shape[-1]), shape)
        self.tensors[f"{name}.weight"] = values.astype(dtype)

    def norm(self, name: str, size: int, dtype: type, around: float = 0.0) -> None:
        self.tensors[f"{name}.weight"] = self.rng(name).normal(around, 0.2, size).astype(dtype)

    def taps(self, name: str, channels: int, dtype: type) -> None:
        self.tensors[f"{name}.weight"] = self.rng(name).normal(0, 0.5, (channels, 1, 4)).astype(dtype)

    def linear(self, name: str, inputs: int, outputs: int, bits: float) -> None:
        self.put(name, random_linear(self.rng(name), inputs, outputs, bits, _gain(name)))

    def put(self, name: str, layer: Linear) -> None:
        self.tensors.update({f"{name}.{part}": array for part, array in layer.items()})


def draw_tensors(
    sizes: Sizes, successor_V3: Int[np.ndarray, "V 3"], quiet: Sequence[int], seed: int
) -> dict[str, np.ndarray]:
    """All tensors but the n-gram table, by their published names.

    Args:
      successor_V3: what follows each token. quiet: ids that hardly ever follow any.
    """
    writer = Writer(sizes, seed)
    head = _head(sizes, quiet, writer.rng("lm_head"))
    writer.put("lm_head", head)
    writer.tensors[f"{PREFIX}embed_tokens.weight"] = planted_embedding(matrix(head), successor_V3)
    _mixer(writer, f"{PREFIX}hyper_connection_mixer")
    for i, kind in enumerate(sizes.layer_types):
        layer = f"{PREFIX}layers.{i}"
        if i + 1 == sizes.ngram_layer:
            _ngram_mix(writer, f"{layer}.ple")
        _recurrent(writer, f"{layer}.linear_attn") if kind == "linear_attention" else _attention(writer, layer)
        _shell(writer, layer)
    _draft_head(writer)
    return writer.tensors


def planted_embedding(head_HV: np.ndarray, successor_V3: Int[np.ndarray, "V 3"]) -> np.ndarray:
    """Rows of root mean square 1 along the pull-weighted sum of the successors' head directions, bfloat16 [V, H]."""
    direction_VH = (head_HV / np.linalg.norm(head_HV, axis=0)).T
    row_VH = np.einsum("vkh,k->vh", direction_VH[successor_V3], PULL)
    return (row_VH / np.sqrt((row_VH**2).mean(1, keepdims=True))).astype(BF16)


def ngram_table(sizes: Sizes, seed: int) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors of the n-gram side file, and its metadata. A row is a scale and a ring of random bits."""
    heads, bits = 16, sizes.ngram_bits
    multipliers, counts, offsets = derive_hash(sizes.vocabulary, 1234, 0, 3, heads // 2, sizes.ngram_base)
    row_dim, rows = sizes.ngram_hidden // heads, -(-int(counts.sum()) // 128) * 128
    rng = np.random.default_rng([seed, crc32(b"ngram_embedding")])
    trellis = rng.integers(-(2**15), 2**15, (rows, 1 + row_dim * bits // 16), np.int16)
    trellis[:, 0] = np.exp(rng.normal(0, 0.1, rows)).astype(F16).view(np.int16)
    tensors = {
        "trellis": trellis,
        "head_bias": rng.normal(0, 0.05, (heads, row_dim)).astype(F16),
        "head_offsets": offsets,
        "head_vocab_sizes": counts,
        "layer_multipliers": multipliers,
    }
    base = f"{PREFIX}layers.{sizes.ngram_layer - 1}.ple.ple_embedding.ngram_embedding"
    metadata = {"format": "exl3_ngram_trellis", "version": "1", "K": str(bits), "codebook": "mul1"}
    metadata |= {"row_dim": str(row_dim), "rows": str(rows)}
    return {f"{base}.{name}": array for name, array in tensors.items()}, metadata


def _gain(name: str) -> float:
    fitting = [part for part in GAINS if part in name]
    return GAINS[max(fitting, key=len)] if fitting else 1.0


def _head(sizes: Sizes, quiet: Sequence[int], rng: np.random.Generator) -> Linear:
    head = random_linear(rng, sizes.hidden, sizes.vocabulary, sizes.head_bits, HEAD_GAIN)
    head["svh"][list(quiet)] *= F16(0.1)
    return head


def _mixer(writer: Writer, site: str) -> None:
    """The weights of a hyper-connection read."""
    wide, rank = writer.sizes.streams * writer.sizes.hidden, writer.sizes.stream_rank
    writer.norm(f"{site}.hc_norm", wide, F16)
    writer.plain(f"{site}.input_mix_weight_down", (rank, wide), F16)
    writer.plain(f"{site}.input_mix_weight_up", (wide, rank), F16)


def _shell(writer: Writer, layer: str) -> None:
    """What every decoder layer has beside its token mixer: two hyper-connections and the experts."""
    sizes = writer.sizes
    for site in ("attn_hyper_connection", "mlp_hyper_connection"):
        _mixer(writer, f"{layer}.{site}")
        inject = (sizes.streams, sizes.streams * sizes.hidden)
        writer.plain(f"{layer}.{site}.block_inject_weight", inject, F16)
    mlp, H, F = f"{layer}.mlp", sizes.hidden, sizes.expert_ffn
    writer.plain(f"{mlp}.gate", (sizes.experts, H), F16)
    writer.plain(f"{mlp}.shared_expert_gate", (1, H), F16)
    for e in range(sizes.experts):
        for name, bits in zip(("gate", "up", "down"), sizes.expert_bits[e % len(sizes.expert_bits)], strict=True):
            inputs, outputs = (F, H) if name == "down" else (H, F)
            writer.linear(f"{mlp}.experts.{e}.{name}_proj", inputs, outputs, bits)
    for name, inputs, outputs in (
        ("gate", H, sizes.shared_ffn),
        ("up", H, sizes.shared_ffn),
        ("down", sizes.shared_ffn, H),
    ):
        writer.linear(f"{mlp}.shared_expert.{name}_proj", inputs, outputs, sizes.attention_bits)


def _recurrent(writer: Writer, name: str) -> None:
    sizes, bits = writer.sizes, writer.sizes.attention_bits
    H, values = sizes.hidden, sizes.delta_value_heads * sizes.delta_size
    writer.linear(f"{name}.in_proj_qkv", H, sizes.delta_channels, bits)
    writer.linear(f"{name}.in_proj_z", H, values, bits)
    writer.linear(f"{name}.out_proj", values, H, bits)
    for gate in "ab":
        writer.plain(f"{name}.in_proj_{gate}", (sizes.delta_value_heads, H), F16)
    writer.taps(f"{name}.conv1d", sizes.delta_channels, BF16)
    writer.norm(f"{name}.norm", sizes.delta_size, BF16, around=1.0)
    rng = writer.rng(f"{name}.A_log")
    writer.tensors[f"{name}.A_log"] = np.log(rng.uniform(0.05, 2.0, sizes.delta_value_heads)).astype(BF16)
    writer.tensors[f"{name}.dt_bias"] = rng.normal(-1.0, 0.7, sizes.delta_value_heads).astype(BF16)


def _attention(writer: Writer, layer: str) -> None:
    sizes, name = writer.sizes, f"{layer}.self_attn"
    H, K, bits = sizes.hidden, sizes.head_size, sizes.attention_bits
    writer.linear(f"{name}.q_proj", H, 2 * sizes.heads * K, bits)
    writer.linear(f"{name}.k_proj", H, sizes.kv_heads * K, bits)
    writer.linear(f"{name}.v_proj", H, sizes.kv_heads * K, bits)
    writer.linear(f"{name}.o_proj", sizes.heads * K, H, bits)
    writer.linear(f"{name}.indexer.index_qk_proj", H, (sizes.index_heads + 1) * sizes.index_size, sizes.index_bits)
    for norm, size in (("q_norm", K), ("k_norm", K)):
        writer.norm(f"{name}.{norm}", size, BF16)
    for norm in ("q_layernorm", "k_layernorm"):
        writer.norm(f"{name}.indexer.{norm}", sizes.index_size, BF16)


def _ngram_mix(writer: Writer, name: str) -> None:
    sizes, wide = writer.sizes, writer.sizes.streams * writer.sizes.hidden
    writer.plain(f"{name}.key_proj", (wide, sizes.ngram_hidden), F16)
    writer.plain(f"{name}.value_proj", (sizes.hidden, sizes.ngram_hidden), F16)
    writer.taps(f"{name}.conv1d", wide, F16)
    for norm in ("norm_key", "norm_query", "norm_conv"):
        writer.norm(f"{name}.{norm}", wide, BF16)


def _draft_head(writer: Writer) -> None:
    sizes, H = writer.sizes, writer.sizes.hidden
    bits = int(sizes.mtp_fuse_bits)
    writer.put("mtp.fc_embedding", identity_linear(writer.rng("mtp.fc_embedding"), H, bits, 1.0))
    writer.linear("mtp.fc_hidden", H, H, bits)
    writer.norm("mtp.pre_fc_norm_embedding", H, BF16)
    writer.norm("mtp.pre_fc_norm_hidden", sizes.streams * H, F16)
    _mixer(writer, "mtp.hyper_connection_mixer")
    _attention(writer, "mtp.layers.0")
    _shell(writer, "mtp.layers.0")
