"""Cases of the sweep: ops that keep to one row and need no cache."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.dense_matmul import linear
from pallas_kernels.elementary import exp, log
from pallas_kernels.hyper_connection import HyperWeights, read, write
from pallas_kernels.keyed_noise import gumbel_noise
from pallas_kernels.leaf_tree import combine
from pallas_kernels.ngram_mix import NgramWeights
from pallas_kernels.ngram_mix.op import injected
from pallas_kernels.norms import centred_rms, l2_normalise, plain_rms
from pallas_kernels.rope import rotate
from pallas_kernels.router import route
from pallas_kernels.vocabulary_sums import block_sums, join_sums
from tests.sweep.case import ROWS, TILES, Case, normal, tiles

EPS = 1e-6
HIDDEN, STREAMS = 640, 4
EXPERTS, ACTIVE, LEAVES = 512, 4, 64


@cache
def norm_cases() -> dict[str, Case]:
    """Norms at the widths of streams, heads and all streams together."""
    return {
        "centred_rms_2560": Case(lambda x, w: centred_rms(x, w, EPS), tiles(1, 4, 2560), normal(2, 4, 2560)),
        "centred_rms_10240": Case(lambda x, w: centred_rms(x, w, EPS), tiles(3, 10240), normal(4, 10240)),
        "plain_rms_gated": Case(
            lambda x, w: plain_rms(x[0], w, EPS) * jax.nn.sigmoid(x[1]),
            (tiles(5, 6, 128), tiles(6, 6, 128)),
            normal(7, 128),
        ),
        "l2_normalise": Case(lambda x, _: l2_normalise(x), tiles(8, 4, 128)),
        "rope": Case(
            lambda tile, w: rotate(centred_rms(tile[0], w, EPS), tile[1], 64, 1e7),
            (tiles(9, 3, 256), np.random.default_rng(9).integers(0, 262144, (TILES, ROWS)).astype(np.int32)),
            normal(10, 256, scale=0.1),
        ),
    }


def elementary(x: jax.Array, _: tuple) -> list[jax.Array]:
    """Every elementary function that ops are made of."""
    size = jnp.abs(x)
    return [
        exp(x),
        log(size),
        jnp.log1p(size),
        jax.nn.sigmoid(x),
        jax.nn.silu(x),
        jax.nn.softplus(x),
        jax.lax.rsqrt(size),
        jnp.sqrt(size),
        jnp.cos(x),
        jnp.sin(x),
        x / (size + jnp.float32(1)),
    ]


@cache
def stream_cases() -> dict[str, Case]:
    """Hyper-connections and the n-gram gate."""
    width = HIDDEN * STREAMS
    hyper = HyperWeights(
        norm=normal(1, width, scale=0.1),
        down=normal(2, 320, width, scale=0.05).astype(np.float16),
        up=normal(3, width, 320, scale=0.05).astype(np.float16),
        inject=normal(4, STREAMS, width, scale=0.05).astype(np.float16),
    )
    ngram = NgramWeights(
        key=normal(5, width, 256, scale=0.1).astype(np.float16),
        value=normal(6, HIDDEN, 256, scale=0.1).astype(np.float16),
        norm_key=normal(7, width, scale=0.1),
        norm_query=normal(8, width, scale=0.1),
        norm_conv=normal(9, width, scale=0.1),
        conv_CT=normal(10, width, 4),
    )
    return {
        "hyper_read": Case(lambda x, w: read(x, w, STREAMS, EPS), tiles(11, width), hyper),
        "hyper_write": Case(lambda x, _: write(*x), (tiles(12, width), tiles(13, HIDDEN), tiles(14, STREAMS))),
        "ngram_gate": Case(
            lambda x, w: injected(x[0], x[1], w, STREAMS, EPS), (tiles(16, width), tiles(17, 256)), ngram
        ),
    }


@cache
def expert_sum_cases() -> dict[str, Case]:
    """Router, leaf tree and the shared expert."""
    rng = np.random.default_rng(1)
    picks = np.argsort(rng.random((TILES, ROWS, EXPERTS)), axis=-1)[..., :ACTIVE]
    picks = np.sort(picks, axis=-1).astype(np.int32)
    return {
        "router": Case(lambda x, w: route(x, w, ACTIVE, True), tiles(2, 2560), normal(3, EXPERTS, 2560, scale=0.05)),
        "leaf_tree": Case(
            lambda x, _: combine(x[0], x[1], x[2], x[3], EXPERTS, LEAVES),
            (tiles(4, ACTIVE, 256), rng.random((TILES, ROWS, ACTIVE)).astype(np.float32), picks, tiles(5, 256)),
        ),
        "shared_expert": Case(
            lambda x, w: linear(jax.nn.silu(linear(x, w[0])) * linear(x, w[1]), w[2]),
            tiles(6, 640),
            (normal(7, 128, 640, scale=0.1), normal(8, 128, 640, scale=0.1), normal(9, 640, 128, scale=0.1)),
        ),
    }


@cache
def vocabulary_cases() -> dict[str, Case]:
    """Log-sum-exp and the noise of draws."""
    rng = np.random.default_rng(2)
    seeds = rng.integers(0, 1 << 32, (TILES, ROWS, 2), dtype=np.uint64).astype(np.uint32)
    places = rng.integers(0, 1 << 20, (2, TILES, ROWS)).astype(np.int32)
    ids = rng.integers(0, 248320, (TILES, ROWS, 300)).astype(np.int32)

    def log_sum(x: jax.Array, _: tuple) -> jax.Array:
        return log(join_sums(block_sums(x, x.max(axis=1))))

    return {
        "vocabulary_sums": Case(log_sum, tiles(3, 1000, scale=4)),
        "keyed_noise": Case(lambda x, _: gumbel_noise(*x), (seeds, places[0], places[1], ids)),
    }


def cases() -> dict[str, Case]:
    """Every case of this file."""
    found = {f"elementary_{width}": Case(elementary, tiles(0, width, scale=3)) for width in (1, 6)}
    return found | norm_cases() | stream_cases() | expert_sum_cases() | vocabulary_cases()
