"""A layer as a list of stages, each an op or two of the model: what one program holds and what many programs do.

A stage takes the values so far, by name, and returns the new ones. Sizes are those of a toy.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.dense_matmul import linear
from pallas_kernels.expert_matmul import ExpertLines, expert_matmul, resident_map
from pallas_kernels.gated_delta import DeltaSizes, DeltaState, DeltaWeights, RowPlaces, gated_delta_rows
from pallas_kernels.gated_delta.rows import ring_rows
from pallas_kernels.hyper_connection import HyperWeights, read, write
from pallas_kernels.leaf_tree import combine
from pallas_kernels.ngram_mix import NgramWeights, ngram_mix
from pallas_kernels.norms import centred_rms, plain_rms
from pallas_kernels.rope import rotate
from pallas_kernels.router import route
from pallas_kernels.sparse_attention import (
    PageTable,
    attend,
    block_means,
    block_scores,
    keep_blocks,
    write_blocks,
    write_rows,
)
from tests.sweep.case import ROWS, normal

Values = dict[str, jax.Array]
Stage = Callable[[Values], Values]

N, D, EPS, THETA = 4, 64, 1e-6, 1e7
HEADS, GROUPS, SIZE, ROTARY, INDEX = 4, 2, 16, 8, 2
BLOCK, PAGE, PAGES, KEPT = 4, 8, 12, 6
EXPERTS, ACTIVE, FFN, LEAVES = 8, 2, 32, 4
SIZES = DeltaSizes(key_heads=2, value_heads=6, key_size=16, value_size=8)
CHANNELS = 2 * 2 * 16 + 6 * 8
PLACES = RowPlaces(
    np.repeat(np.array([1, 0, 2], np.int32), [6, 3, 7]),
    np.array([*range(61, 67), *range(3), *range(20, 27)], np.int32),
    np.arange(ROWS) < 15,
    np.arange(ROWS) == 14,
)


def weight(seed: int, *shape: int) -> np.ndarray:
    """A weight of bfloat16 values, which dots multiply as they are stored."""
    return normal(seed, *shape, scale=shape[-1] ** -0.5).astype(jnp.bfloat16)


def hyper(seed: int) -> HyperWeights:
    """Weights of one residual site."""
    return HyperWeights(
        norm=normal(seed, N * D, scale=0.1),
        down=weight(seed + 1, 16, N * D),
        up=weight(seed + 2, N * D, 16),
        inject=weight(seed + 3, N, N * D),
    )


def reading(site: HyperWeights) -> Stage:
    """From the streams to a block's input."""
    return lambda v: dict(zip(("x", "gate"), read(v["streams"], site, N, EPS), strict=True))


def writing(v: Values) -> Values:
    """From a block's output to the streams."""
    return {"streams": write(v["streams"], v["out"], v["gate"])}


def recurrent_stages() -> list[Stage]:
    """An n-gram embedding and a recurrent block."""
    ngram = NgramWeights(
        key=weight(1, N * D, 24),
        value=weight(2, D, 24),
        norm_key=normal(3, N * D, scale=0.1),
        norm_query=normal(4, N * D, scale=0.1),
        norm_conv=normal(5, N * D, scale=0.1),
        conv_CT=normal(6, N * D, 4),
    )
    rule = DeltaWeights(normal(7, CHANNELS, 4), normal(8, 6), normal(9, 6))
    qkv, gates, z, out = weight(10, CHANNELS, D), weight(11, 12, D), weight(12, 48, D), weight(13, D, 48)
    norm = normal(14, 8)
    places = jax.tree.map(jnp.asarray, PLACES)

    def inject(v: Values) -> Values:
        ring, streams = ngram_mix(v["streams"], v["embedding"], v["ring"], places, ngram, N, 3, EPS)
        return {"ring": ring, "streams": streams}

    def recur(v: Values) -> Values:
        state = DeltaState(committed=v["committed"], ring=v["delta_ring"])
        state, found = gated_delta_rows(state, v["folded"], places, v["qkv"], v["gates"], rule, SIZES)
        return {"committed": state.committed, "delta_ring": state.ring, "found": found}

    def output(v: Values) -> Values:
        gate = linear(v["x"], z).reshape(v["found"].shape)
        return {"out": linear((plain_rms(v["found"], norm, EPS) * jax.nn.sigmoid(gate)).reshape(ROWS, -1), out)}

    project = lambda v: {"qkv": linear(v["x"], qkv), "gates": linear(v["x"], gates)}  # noqa: E731
    return [inject, reading(hyper(20)), project, recur, output, writing]


def attention_stages() -> list[Stage]:
    """A sparse attention block."""
    q, k, v_, index = (
        weight(s, rows * SIZE, D) for s, rows in ((30, HEADS), (31, GROUPS), (32, GROUPS), (33, INDEX + 1))
    )
    gate, out, norm = weight(34, HEADS * SIZE, D), weight(35, D, HEADS * SIZE), normal(36, SIZE, scale=0.1)
    position = jnp.asarray(PLACES.position_B)
    turned = lambda x, place: rotate(centred_rms(x, norm, EPS), place, ROTARY, THETA)  # noqa: E731
    pages = lambda v: PageTable(v["pages"], PAGE)  # noqa: E731

    def project(v: Values) -> Values:
        heads = {name: linear(v["x"], w).reshape(ROWS, -1, SIZE) for name, w in (("q", q), ("k", k), ("index", index))}
        query = {name: turned(heads[source], position) for name, source in (("query", "q"), ("key", "k"))}
        value = linear(v["x"], v_).reshape(ROWS, -1, SIZE)
        return query | {
            "value": value,
            "index_query": turned(heads["index"][:, :-1], position),
            "raw": heads["index"][:, -1],
        }

    def store(v: Values) -> Values:
        live, block = jnp.asarray(PLACES.live_B), position // BLOCK
        raw = write_rows(v["raws"], pages(v), position, live, v["raw"])
        mean = block_means(raw, pages(v), block, BLOCK)
        pooled = turned(mean[:, None], block * BLOCK)[:, 0]
        done = live & (position % BLOCK == BLOCK - 1)
        return {
            "raws": raw,
            "keys": write_rows(v["keys"], pages(v), position, live, v["key"]),
            "values": write_rows(v["values"], pages(v), position, live, v["value"]),
            "pooled": write_blocks(v["pooled"], pages(v), block, done, pooled),
        }

    def score(v: Values) -> Values:
        return {"scores": block_scores(v["index_query"], v["pooled"], pages(v), (position + 1) // BLOCK)}

    def keep(v: Values) -> Values:
        return dict(zip(("kept", "count"), keep_blocks(v["scores"], (position + 1) // BLOCK, KEPT), strict=True))

    def look(v: Values) -> Values:
        found = attend(v["query"], v["keys"], v["values"], pages(v), v["kept"], v["count"], position, BLOCK)
        return {"found": found}

    def output(v: Values) -> Values:
        gated = v["found"].reshape(ROWS, -1) * jax.nn.sigmoid(linear(v["x"], gate))
        return {"out": linear(gated, out)}

    return [reading(hyper(40)), project, store, score, keep, look, output, writing]


def expert_stages() -> list[Stage]:
    """Routed experts and the shared one."""
    router = weight(50, EXPERTS, D)
    pools = [weight(seed, EXPERTS, *shape) for seed, shape in ((51, (FFN, D)), (52, (FFN, D)), (53, (D, FFN)))]
    shared = [weight(seed, *shape) for seed, shape in ((54, (FFN, D)), (55, (FFN, D)), (56, (D, FFN)), (57, (1, D)))]
    line_map = resident_map(np.zeros((3, EXPERTS), np.int32), np.tile(np.arange(EXPERTS, dtype=np.int32), (3, 1)))

    def pick(v: Values) -> Values:
        return dict(zip(("expert", "weight"), route(v["x"], router, ACTIVE, True), strict=True))

    def routed(v: Values) -> Values:
        lines = ExpertLines(*((jnp.asarray(pool),) for pool in pools))
        return {"routed": expert_matmul(v["x"], v["expert"], lines, line_map, FFN)}

    def join(v: Values) -> Values:
        hidden = jax.nn.silu(linear(v["x"], shared[0])) * linear(v["x"], shared[1])
        always = jax.nn.sigmoid(linear(v["x"], shared[3])) * linear(hidden, shared[2])
        return {"out": combine(v["routed"], v["weight"], v["expert"], always, EXPERTS, LEAVES)}

    return [reading(hyper(60)), pick, routed, join, writing]


def start() -> dict[str, np.ndarray]:
    """The streams, embeddings and caches that the first stage finds."""
    rng = np.random.default_rng(70)
    lanes = rng.permutation(3 * PAGES).reshape(3, PAGES).astype(np.int32)
    pools = {name: normal(s, 3 * PAGES, PAGE, GROUPS, SIZE) for s, name in ((71, "keys"), (72, "values"))}
    return pools | {
        "streams": normal(73, ROWS, N * D),
        "embedding": normal(74, ROWS, 24),
        "ring": normal(75, 3, ring_rows(9), N * D),
        "committed": normal(76, 3, 6, 16, 8, scale=0.1),
        "delta_ring": normal(77, 3, ring_rows(3), CHANNELS + 12),
        "folded": np.array([0, 60, 18], np.int32),
        "raws": normal(78, 3 * PAGES, PAGE, SIZE),
        "pooled": normal(79, 3 * PAGES, PAGE // BLOCK, SIZE),
        "pages": lanes[PLACES.lane_B],
    }
