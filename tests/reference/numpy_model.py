"""Host, tests only. The whole network and its draft head in NumPy: an oracle that shares no code with the packages.

Row by row it is the formula, in float64 unless told otherwise. Read next: `tests/reference/test_numpy_model.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.reference import numpy_layers as layers
from tests.reference.numpy_weights import Weights


class Facts:
    """The numbers of a config.json that the formulas need, from a nested or a flat file."""

    def __init__(self, config: Mapping):
        c = config.get("text_config", config)
        turn = {**c, **c.get("rope_parameters", {})}
        self.vocab, self.hidden, self.eps = c["vocab_size"], c["hidden_size"], c["rms_norm_eps"]
        self.streams, self.depth = c["hc_count"], c["num_hidden_layers"]
        self.recurrent = [kind == "linear_attention" for kind in c["layer_types"]]
        self.heads, self.kv_heads, self.head_dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.rotary, self.theta = int(c["head_dim"] * turn["partial_rotary_factor"]), turn["rope_theta"]
        self.gdn_key_heads, self.gdn_value_heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.gdn_key_dim, self.gdn_value_dim = c["linear_key_head_dim"], c["linear_value_head_dim"]
        self.gate_type = c.get("output_gate_type") or c.get("hidden_act", "silu")
        self.index_heads, self.index_dim = c["indexer_n_heads"], c["indexer_head_dim"]
        self.index_budget, self.ratio = c["indexer_budget"], c["indexer_compress_ratio"]
        self.active, self.expert_ffn = c["num_experts_per_tok"], c["moe_intermediate_size"]
        self.shared_ffn = c["shared_expert_intermediate_size"]
        self.ple_layers = [i - 1 for i in sorted(c["ple_layer_ids"])]
        self.ngram_size, self.ngram_base = c["ngram_size"], c["ngram_vocab_size_base"]
        self.ngram_heads = (c["ngram_size"] - 1) * c["heads_per_ngram"]
        self.seed = c.get("seed", 1234)
        self.eos = np.atleast_1d(c["eos_token_id"]).tolist()[0]


@dataclass
class State:
    """What a sequence has left behind: its tokens, and a dict of arrays per layer."""

    tokens: list[int] = field(default_factory=list)
    layers: dict[int, dict] = field(default_factory=dict)


class NumpyModel:
    """The text model of a checkpoint.

    Args:
      config: the parsed config.json. tensors: all tensors by their names in the files, plain or EXL3.
      dtype: float type of all arithmetic.
    """

    def __init__(self, config: Mapping, tensors: Mapping[str, np.ndarray], dtype: type = np.float64):
        self.cfg, self.weights = Facts(config), Weights(tensors, dtype)
        self.hashes = {i: layers.hash_constants(self.cfg, place) for place, i in enumerate(self.cfg.ple_layers)}

    def forward(
        self, ids: Sequence[int], state: State | None = None, taps: dict[str, np.ndarray] | None = None
    ) -> np.ndarray:
        """Logits [T, V] of tokens that follow `state` (extended in place; None starts a sequence).

        `taps` receives `streams` [T, n, H], `final_hidden`, and per layer `hidden.i`, `attn_in.i`, `attn_out.i`,
        `mlp_in.i`, `mlp_out.i`, `router_ids.i`, `router_w.i`, `mask.i` and `ngram_ids.i`.
        """
        cfg, w, taps = self.cfg, self.weights, {} if taps is None else taps
        state = State() if state is None else state
        state.tokens += [int(t) for t in ids]
        R = np.repeat(w.plain("embed_tokens")[np.asarray(ids)][:, None], cfg.streams, axis=1)
        for i in range(cfg.depth):
            local = state.layers.setdefault(i, {})
            if i in cfg.ple_layers:
                rows = layers.ngram_ids(state.tokens, len(ids), cfg, self.hashes[i])
                taps[f"ngram_ids.{i}"] = rows
                R = R + layers.ple(R, rows, w, f"layers.{i}", cfg, local)
            R = self.layer(R, f"layers.{i}", cfg.recurrent[i], local, taps, f".{i}")
            taps[f"hidden.{i}"] = R
        taps["streams"] = R
        taps["final_hidden"], _ = layers.read(R, w, "hyper_connection_mixer", cfg)
        return self.head(taps["final_hidden"])

    def layer(self, R: np.ndarray, name: str, recurrent: bool, local: dict, taps: dict, tag: str) -> np.ndarray:
        """One decoder layer on streams [T, n, H]; what it saw goes to `taps` under names that end in `tag`."""
        cfg, w, seen = self.cfg, self.weights, {}
        x, g = layers.read(R, w, f"{name}.attn_hyper_connection", cfg)
        if recurrent:
            y = layers.gated_delta(x, w, name, cfg, local)
        else:
            y = layers.sparse_attention(x, w, name, cfg, local, seen)
        seen.update(attn_in=x, attn_out=y)
        R = R + g[..., None] * y[:, None]
        x, g = layers.read(R, w, f"{name}.mlp_hyper_connection", cfg)
        y = layers.experts(x, w, name, cfg, seen)
        seen.update(mlp_in=x, mlp_out=y)
        taps.update({key + tag: value for key, value in seen.items()})
        return R + g[..., None] * y[:, None]

    def head(self, x: np.ndarray) -> np.ndarray:
        return x @ self.weights.linear("lm_head", self.cfg.vocab, self.cfg.hidden).T

    def mtp(self, streams: np.ndarray, next_ids: Sequence[int], cache: dict) -> tuple[np.ndarray, np.ndarray]:
        """Pairs (streams of row i, token of row i + 1) -> draft logits [T, V] of row i + 2, and new streams [T, n, H].

        `cache` is the head's own, a dict that the pairs extend; an empty one starts a sequence.
        """
        cfg, w = self.cfg, self.weights
        T, n, H = streams.shape
        e = layers.rms_centred(
            w.plain("embed_tokens")[np.asarray(next_ids)], w.plain("mtp.pre_fc_norm_embedding"), cfg.eps
        )
        h = layers.rms_centred(streams.reshape(T, n * H), w.plain("mtp.pre_fc_norm_hidden"), cfg.eps)
        e = e @ w.linear("mtp.fc_embedding", H, H).T
        X = h.reshape(T, n, H) @ w.linear("mtp.fc_hidden", H, H).T + e[:, None]
        X = self.layer(X, "mtp.layers.0", False, cache, {}, "")
        x, _ = layers.read(X, w, "mtp.hyper_connection_mixer", cfg)
        return self.head(x), X

    def draft(self, logits: np.ndarray, streams: np.ndarray, cache: dict, count: int) -> tuple[list[int], np.ndarray]:
        """`count` chained greedy drafts after a pair's logits [V] and streams [n, H], and their logits [count, V].

        The cache is left as it came.
        """
        kept, drafts, seen = dict(cache), [], []
        for j in range(count):
            drafts.append(int(logits.argmax()))
            seen.append(logits)
            if j + 1 < count:
                more, X = self.mtp(streams[None], drafts[-1:], cache)
                logits, streams = more[0], X[0]
        cache.clear()
        cache.update(kept)
        return drafts, np.array(seen)

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        """The `count` most likely next tokens, one after the other; equal logits go to the lower id."""
        state, found = State(), []
        logits = self.forward(ids, state)[-1]
        for _ in range(count):
            found.append(int(logits.argmax()))
            logits = self.forward(found[-1:], state)[-1]
        return found
