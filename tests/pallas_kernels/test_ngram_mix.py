"""The n-gram gate and its dilated convolution: the formula, and a lane's bits in any pieces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gated_delta import RowPlaces
from pallas_kernels.gated_delta.rows import ring_rows
from pallas_kernels.ngram_mix import NgramWeights, ngram_mix
from pallas_kernels.ngram_mix.shapes import SMALL_SHAPES
from tests.sweep.case import unequal

SHAPE = SMALL_SHAPES["small"]
N, D, W, TAPS = SHAPE.streams, SHAPE.hidden, SHAPE.embedding, SHAPE.taps
EPS, LANES, LENGTH = 1e-6, 2, 32
RNG = np.random.default_rng(0)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * RNG.standard_normal(shape)).astype(np.float32)


STREAMS, EMBEDDING = normal(LANES, LENGTH, N * D), normal(LANES, LENGTH, W)
KEY, VALUE = normal(N * D, W), normal(D, W)
WEIGHTS = NgramWeights(
    key=KEY,
    value=VALUE,
    norm_key=normal(N * D, scale=0.1),
    norm_query=normal(N * D, scale=0.1),
    norm_conv=normal(N * D, scale=0.1),
    conv_CT=normal(N * D, TAPS),
)


@jax.jit
def step(ring: jax.Array, places: RowPlaces, streams: jax.Array, embedding: jax.Array) -> tuple[jax.Array, jax.Array]:
    return ngram_mix(streams, embedding, ring, places, WEIGHTS, N, SHAPE.dilation, EPS)


def run(ring: jax.Array, *pieces: tuple[int, int, int]) -> tuple[jax.Array, list[np.ndarray]]:
    """One tile of pieces (lane, start, stop), rows of NaN behind them."""
    rows = [(lane, place) for lane, start, stop in pieces for place in range(start, stop)]
    lane, position = (np.array([*column, *[0] * (16 - len(rows))], np.int32) for column in zip(*rows, strict=True))
    live = np.arange(16) < len(rows)
    places = RowPlaces(jnp.asarray(lane), jnp.asarray(position), jnp.asarray(live), jnp.zeros(16, bool))
    streams = np.where(live[:, None], STREAMS[lane, position], np.float32(np.nan))
    embedding = np.where(live[:, None], EMBEDDING[lane, position], np.float32(np.nan))
    ring, out = step(ring, places, streams, embedding)
    return ring, np.split(np.asarray(out)[: len(rows)], np.cumsum([stop - start for _, start, stop in pieces])[:-1])


def fresh() -> np.ndarray:
    """Rings whose old entries must never be read."""
    return np.full((LANES, ring_rows((TAPS - 1) * SHAPE.dilation), N * D), np.nan, np.float32)


def grouped(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    x = x.reshape(-1, N, D)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS)
    return x.reshape(-1, N * D) * (1.0 + weight)


def formula(lane: int, dilation: int) -> np.ndarray:
    streams, embedding = STREAMS[lane].astype(np.float64), EMBEDDING[lane].astype(np.float64)
    key = grouped(embedding @ KEY.T, WEIGHTS.norm_key).reshape(-1, N, D)
    query = grouped(streams, WEIGHTS.norm_query).reshape(-1, N, D)
    score = (key * query).sum(axis=-1) / np.sqrt(D)
    score = np.sign(score) * np.sqrt(np.maximum(np.abs(score), 1e-6))
    u = (1 / (1 + np.exp(-score)))[:, :, None] * (embedding @ VALUE.T)[:, None, :]
    u = u.reshape(-1, N * D)
    reach = (TAPS - 1) * dilation
    past = np.concatenate([np.zeros((reach, N * D)), grouped(u, WEIGHTS.norm_conv)])
    v = sum(past[j * dilation : j * dilation + LENGTH] * WEIGHTS.conv_CT[:, j] for j in range(TAPS))
    return streams + u + v / (1 + np.exp(-v))


@pytest.fixture(scope="module")
def whole():
    """Each lane's streams, run alone in two tiles."""
    outs = []
    for lane in range(LANES):
        ring, first = run(fresh(), (lane, 0, 16))
        outs.append(np.concatenate([first[0], run(ring, (lane, 16, 32))[1][0]]))
    return outs


def test_streams_follow_the_formula(whole):
    for lane in range(LANES):
        np.testing.assert_allclose(whole[lane], formula(lane, SHAPE.dilation), atol=2e-5)


def test_another_dilation_is_told_apart(whole):
    assert not np.allclose(whole[0], formula(0, 1), atol=1e-2)


def test_pieces_and_company_change_no_bit(whole):
    ring, (a, b) = run(fresh(), (1, 0, 7), (0, 0, 9))
    ring, (c,) = run(ring, (1, 7, 8))
    ring, (d, e) = run(ring, (0, 9, 20), (1, 8, 13))
    assert unequal(np.concatenate([b, d]), whole[0][:20]) == 0
    assert unequal(np.concatenate([a, c, e]), whole[1][:13]) == 0


def test_a_dropped_tail_is_told_apart(whole):
    ring, _ = run(fresh(), (0, 0, 16))
    _, (found,) = run(np.zeros_like(ring), (0, 16, 32))
    assert unequal(found[:9], whole[0][16:25]) and unequal(found[9:], whole[0][25:]) == 0
