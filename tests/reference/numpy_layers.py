"""Host, tests only. The blocks of the network in NumPy: plain loops and readable formulas, rows of one sequence.

A block takes its inputs, its weights and the state of the sequence so far (a dict it extends in place).
Read next: `numpy_model.py`.
"""

import numpy as np

from tests.reference.numpy_weights import Weights

MASK64 = 2**64 - 1
GOLDEN_RATIO = 0x9E3779B97F4A7C15


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def rms(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


def rms_centred(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    """rms norm times (1 + w); a grouped norm has x [T, n, H] and w [n H]."""
    return rms(x, eps) * (1 + w.reshape(-1, x.shape[-1]))


def rope(x: np.ndarray, positions: np.ndarray, width: int, theta: float) -> np.ndarray:
    """Turns the first `width` dims of x [T, heads, d] in half-split pairs."""
    angle = positions[:, None, None] * theta ** (-np.arange(0, width, 2) / width)
    a, b = x[..., : width // 2], x[..., width // 2 : width]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., width:]], -1).astype(x.dtype)


def causal_conv(x: np.ndarray, tail: np.ndarray, taps: np.ndarray, dilation: int) -> np.ndarray:
    """sum_j taps[:, j] x[t - dilation (last - j)]; `tail` holds the rows before x, oldest first."""
    full, kernel = np.concatenate([tail, x]), taps.shape[-1]
    return np.sum([taps[:, 0, j] * full[j * dilation : j * dilation + len(x)] for j in range(kernel)], axis=0)


def read(R: np.ndarray, w: Weights, site: str, cfg) -> tuple[np.ndarray, np.ndarray]:
    """Hyper-connection read of R [T, n, H]: block input x [T, H] and stream gates g [T, n] (zeros for a mixer)."""
    T, n, H = R.shape
    y = rms_centred(R, w.plain(f"{site}.hc_norm"), cfg.eps)
    flat = y.reshape(T, n * H)
    down, up = w.plain(f"{site}.input_mix_weight_down"), w.plain(f"{site}.input_mix_weight_up")
    m = sigmoid(silu(flat @ down.T / n) @ up.T).reshape(T, n, H)
    x = (m * y).mean(1)
    if not w.has(f"{site}.block_inject_weight"):
        return x, np.zeros((T, n), R.dtype)
    return x, 2 * sigmoid(flat @ w.plain(f"{site}.block_inject_weight").T / n)


def gated_delta(x: np.ndarray, w: Weights, layer: str, cfg, state: dict) -> np.ndarray:
    """S = e^g S; d = beta (v - S^T k); S = S + k d^T; o = S^T q, one row after the other."""
    p, T = f"{layer}.linear_attn", len(x)
    nk, nv, dk, dv = cfg.gdn_key_heads, cfg.gdn_value_heads, cfg.gdn_key_dim, cfg.gdn_value_dim
    keys, values = nk * dk, nv * dv
    qkv = x @ w.linear(f"{p}.in_proj_qkv", 2 * keys + values, cfg.hidden).T
    taps = w.plain(f"{p}.conv1d")
    tail = state.setdefault("conv", np.zeros((taps.shape[-1] - 1, qkv.shape[1]), x.dtype))
    mixed = silu(causal_conv(qkv, tail, taps, 1))
    state["conv"] = np.concatenate([tail, qkv])[len(qkv) :]
    q, k, v = np.split(mixed, [keys, 2 * keys], axis=1)
    q, k = (a.reshape(T, nk, dk) / np.sqrt((a.reshape(T, nk, dk) ** 2).sum(-1, keepdims=True) + 1e-6) for a in (q, k))
    q, k = (np.repeat(a, nv // nk, axis=1) for a in (q * dk**-0.5, k))
    v, beta = v.reshape(T, nv, dv), sigmoid(x @ w.plain(f"{p}.in_proj_b").T)
    step = np.logaddexp(0, x @ w.plain(f"{p}.in_proj_a").T + w.plain(f"{p}.dt_bias"))
    decay = np.exp(-np.exp(w.plain(f"{p}.A_log")) * step)
    S, out = state.setdefault("S", np.zeros((nv, dk, dv), x.dtype)), np.empty((T, nv, dv), x.dtype)
    for t in range(T):
        S = decay[t][:, None, None] * S
        d = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", S, k[t]))
        S = S + k[t][:, :, None] * d[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", S, q[t])
    state["S"] = S
    z = (x @ w.linear(f"{p}.in_proj_z", values, cfg.hidden).T).reshape(T, nv, dv)
    gate = sigmoid(z) if cfg.gate_type == "sigmoid" else silu(z)
    gated = rms(out, cfg.eps) * w.plain(f"{p}.norm") * gate
    return gated.reshape(T, values) @ w.linear(f"{p}.out_proj", cfg.hidden, values).T


def block_choice(scores: np.ndarray, budget: int) -> np.ndarray:
    """Ids of the `budget` best blocks; equal scores go to the lower id."""
    return np.argsort(-scores, kind="stable")[:budget]


def visible_rows(x: np.ndarray, w: Weights, layer: str, cfg, state: dict, start: int) -> np.ndarray:
    """The indexer: a mask [T, S] of the rows that each new row may read."""
    p, T, d, r = f"{layer}.self_attn.indexer", len(x), cfg.index_dim, cfg.ratio
    both = x @ w.linear(f"{p}.index_qk_proj", (cfg.index_heads + 1) * d, cfg.hidden).T
    both = both.reshape(T, cfg.index_heads + 1, d)
    state["raw"] = raw = np.concatenate([state.get("raw", np.zeros((0, d), x.dtype)), both[:, -1]])
    query = rms_centred(both[:, :-1], w.plain(f"{p}.q_layernorm"), cfg.eps)
    query = rope(query, start + np.arange(T), cfg.rotary, cfg.theta)
    blocks = len(raw) // r
    pooled = rms_centred(raw[: blocks * r].reshape(blocks, 1, r, d).mean(2), w.plain(f"{p}.k_layernorm"), cfg.eps)
    pooled = rope(pooled, r * np.arange(blocks), cfg.rotary, cfg.theta)[:, 0]
    scores = np.maximum(np.einsum("thd,bd->thb", query, pooled), 0).sum(1) / np.sqrt(d)
    mask = np.zeros((T, len(raw)), bool)
    for t in range(T):
        seen = start + t + 1
        complete = seen // r
        for block in block_choice(scores[t, :complete], cfg.index_budget // r):
            mask[t, r * block : r * (block + 1)] = True
        mask[t, r * complete : seen] = True
    return mask


def sparse_attention(x: np.ndarray, w: Weights, layer: str, cfg, state: dict, taps: dict) -> np.ndarray:
    """softmax over the visible rows, gated per query head; keys are kept after norm and rope."""
    p, T, d = f"{layer}.self_attn", len(x), cfg.head_dim
    nq, nkv, start = cfg.heads, cfg.kv_heads, len(state.get("k", ()))
    at = start + np.arange(T)
    qg = (x @ w.linear(f"{p}.q_proj", nq * 2 * d, cfg.hidden).T).reshape(T, nq, 2 * d)
    q = rope(rms_centred(qg[..., :d], w.plain(f"{p}.q_norm"), cfg.eps), at, cfg.rotary, cfg.theta)
    k, v = ((x @ w.linear(f"{p}.{s}_proj", nkv * d, cfg.hidden).T).reshape(T, nkv, d) for s in "kv")
    k = rope(rms_centred(k, w.plain(f"{p}.k_norm"), cfg.eps), at, cfg.rotary, cfg.theta)
    for name, new in (("k", k), ("v", v)):
        state[name] = np.concatenate([state.get(name, new[:0]), new])
    mask = taps["mask"] = visible_rows(x, w, layer, cfg, state, start)
    K, V = (np.repeat(state[name], nq // nkv, axis=1) for name in "kv")
    scores = np.where(mask[:, None], np.einsum("thd,shd->ths", q, K) * d**-0.5, -np.inf)
    weight = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("ths,shd->thd", weight / weight.sum(-1, keepdims=True), V) * sigmoid(qg[..., d:])
    return out.reshape(T, nq * d) @ w.linear(f"{p}.o_proj", cfg.hidden, nq * d).T


def experts(x: np.ndarray, w: Weights, layer: str, cfg, taps: dict) -> np.ndarray:
    """softmax -> top k (lower id wins a tie) -> renormalise; routed sum plus the gated shared expert."""
    p = f"{layer}.mlp"
    logits = x @ w.plain(f"{p}.gate").T
    prob = np.exp(logits - logits.max(-1, keepdims=True))
    prob = prob / prob.sum(-1, keepdims=True)
    ids = np.argsort(-prob, axis=-1, kind="stable")[:, : cfg.active]
    weight = np.take_along_axis(prob, ids, -1)
    weight = weight / weight.sum(-1, keepdims=True)
    taps["router_ids"], taps["router_w"] = ids, weight
    routed = np.zeros_like(x)
    for e in np.unique(ids).tolist():
        row, slot = np.nonzero(ids == e)
        gate, up, down = w.expert(layer, e, cfg.hidden, cfg.expert_ffn)
        routed[row] += weight[row, slot][:, None] * ((silu(x[row] @ gate.T) * (x[row] @ up.T)) @ down.T)
    s, F = f"{p}.shared_expert", cfg.shared_ffn
    gate, up = (x @ w.linear(f"{s}.{name}_proj", F, cfg.hidden).T for name in ("gate", "up"))
    shared = (silu(gate) * up) @ w.linear(f"{s}.down_proj", cfg.hidden, F).T
    return routed + sigmoid(x @ w.plain(f"{p}.shared_expert_gate").T) * shared


def mix64(v: int) -> int:
    v = (v + GOLDEN_RATIO) & MASK64
    v = ((v ^ v >> 30) * 0xBF58476D1CE4E5B9) & MASK64
    v = ((v ^ v >> 27) * 0x94D049BB133111EB) & MASK64
    return v ^ v >> 31


def hash_constants(cfg, place: int) -> tuple[list[int], list[int], list[int]]:
    """Multipliers, prime table sizes and row offsets of the PLE layer that comes `place`-th."""
    half = ((2**63 - 1) // cfg.vocab) // 2
    base = cfg.seed + 10007 * place
    multipliers = [2 * (mix64(base + GOLDEN_RATIO * (i + 1)) % half) + 1 for i in range(cfg.ngram_size)]
    heads, primes, candidate = cfg.ngram_heads, [], cfg.ngram_base
    while len(primes) < (place + 1) * heads:
        if all(candidate % f for f in range(2, int(candidate**0.5) + 1)):
            primes.append(candidate)
        candidate += 1
    sizes = primes[place * heads :]
    return multipliers, sizes, [sum(sizes[:j]) for j in range(heads)]


def ngram_ids(history: list[int], count: int, cfg, constants: tuple[list[int], list[int], list[int]]) -> np.ndarray:
    """Row ids [count, heads] of the last `count` tokens of a sequence, in exact integers; see `hash_constants`."""
    multipliers, sizes, offsets = constants
    per_order, rows = cfg.ngram_heads // (cfg.ngram_size - 1), []
    for p in range(len(history) - count, len(history)):
        context, known = [history[p]], True
        for back in range(1, cfg.ngram_size):
            known = known and p - back >= 0 and history[p - back] != cfg.eos
            context.append(history[p - back] if known else cfg.eos)
        terms = [(c * m + 2**63) % 2**64 - 2**63 for c, m in zip(context, multipliers, strict=True)]  # as int64 wraps
        mixed, row = terms[0], []
        for order in range(1, cfg.ngram_size):
            mixed ^= terms[order]
            heads = range((order - 1) * per_order, order * per_order)
            row += [mixed % sizes[j] + offsets[j] for j in heads]
        rows.append(row)
    return np.array(rows, np.int64).reshape(count, cfg.ngram_heads)


def ple(R: np.ndarray, ids: np.ndarray, w: Weights, layer: str, cfg, state: dict) -> np.ndarray:
    """The hashed n-gram embedding u + v that joins the streams R [T, n, H]."""
    p, (T, n, H) = f"{layer}.ple", R.shape
    E = w.ngram_rows(layer, ids, cfg.ngram_heads).reshape(T, -1)
    key = rms_centred((E @ w.plain(f"{p}.key_proj").T).reshape(T, n, H), w.plain(f"{p}.norm_key"), cfg.eps)
    value = E @ w.plain(f"{p}.value_proj").T
    query = rms_centred(R, w.plain(f"{p}.norm_query"), cfg.eps)
    a = (key * query).sum(-1, keepdims=True) / np.sqrt(H)
    a = np.sign(a) * np.sqrt(np.maximum(np.abs(a), 1e-6))
    u = sigmoid(a) * value[:, None]
    c = rms_centred(u, w.plain(f"{p}.norm_conv"), cfg.eps).reshape(T, n * H)
    taps = w.plain(f"{p}.conv1d")
    tail = state.setdefault("ple_conv", np.zeros(((taps.shape[-1] - 1) * cfg.ngram_size, n * H), R.dtype))
    state["ple_conv"] = np.concatenate([tail, c])[len(c) :]
    return u + silu(causal_conv(c, tail, taps, cfg.ngram_size)).reshape(T, n, H)
