"""The recurrence over rows of several lanes: the formula, and a lane's bits however its rows are dealt out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gated_delta import DeltaSizes, DeltaState, DeltaWeights, RowPlaces, fold, gated_delta_rows
from pallas_kernels.gated_delta.rows import ring_rows
from pallas_kernels.gated_delta.shapes import SMALL_SHAPES
from tests.sweep.case import unequal

SHAPE = SMALL_SHAPES["small"]
L, H, KH, DK, DV, C = (
    SHAPE.lanes, SHAPE.value_heads, SHAPE.key_heads, SHAPE.key_size, SHAPE.value_size, SHAPE.channels
)  # fmt: skip
SIZES = DeltaSizes(key_heads=KH, value_heads=H, key_size=DK, value_size=DV)
RNG = np.random.default_rng(0)
LENGTH = 40
RAW = RNG.standard_normal((L, LENGTH, C)).astype(np.float32)
GATES = RNG.standard_normal((L, LENGTH, 2 * H)).astype(np.float32)
WEIGHTS = DeltaWeights(
    conv_CT=RNG.standard_normal((C, SHAPE.taps)).astype(np.float32),
    decay_log=RNG.standard_normal(H).astype(np.float32),
    time_bias=RNG.standard_normal(H).astype(np.float32),
)


@jax.jit
def step(state: DeltaState, folded: jax.Array, places: RowPlaces, raw: jax.Array, gates: jax.Array):
    return gated_delta_rows(state, folded, places, raw, gates, WEIGHTS, SIZES)


@jax.jit
def folded_to(state: DeltaState, folded: jax.Array, target: jax.Array) -> DeltaState:
    return fold(state, folded, target, WEIGHTS, SIZES)


def empty(fill: float = np.nan) -> DeltaState:
    """Fresh lanes; what they hold must never be read."""
    ring = np.full((L, ring_rows(SHAPE.taps - 1), C + 2 * H), fill, np.float32)
    return DeltaState(committed=np.full((L, H, DK, DV), fill, np.float32), ring=ring)


class Lanes:
    """Runs tiles of pieces (lane, start, stop, drafts from) and keeps what each lane has taken in."""

    def __init__(self, fill: float = np.nan):
        self.state, self.folded = empty(fill), np.zeros(L, np.int32)

    def run(self, *pieces: tuple[int, int, int] | tuple[int, int, int, int]) -> list[np.ndarray]:
        lane, position, draft = [], [], []
        for piece in pieces:
            places = range(piece[1], piece[2])
            lane += [piece[0]] * len(places)
            position += places
            draft += [place >= piece[3] if len(piece) == 4 else False for place in places]
        live = len(lane)
        height = 16 * max(1, -(-live // 16))
        padding = height - live
        places = RowPlaces(
            np.array(lane + [0] * padding, np.int32),
            np.array(position + [0] * padding, np.int32),
            np.arange(height) < live,
            np.array(draft + [False] * padding),
        )
        raw, gates = np.full((height, C), np.nan, np.float32), np.full((height, 2 * H), np.nan, np.float32)
        raw[:live], gates[:live] = RAW[lane, position], GATES[lane, position]
        self.state, out = step(self.state, self.folded, jax.tree.map(jnp.asarray, places), raw, gates)
        out = np.asarray(out)
        assert not out[live:].any()
        for piece in pieces:
            self.folded[piece[0]] = piece[3] if len(piece) == 4 else piece[2]
        return np.split(out[:live], np.cumsum([piece[2] - piece[1] for piece in pieces])[:-1])

    def commit(self, *lengths: int) -> None:
        self.state = folded_to(self.state, self.folded, np.array(lengths, np.int32))
        self.folded = np.array(lengths, np.int32)


def formula(lane: int, rows: int, taps: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Read-outs and the state after them, float64; fewer taps drop the convolution's tail."""
    raw, gates = RAW[lane].astype(np.float64), GATES[lane].astype(np.float64)
    past = np.concatenate([np.zeros((3, C)), raw])
    mixed = sum(past[j : j + LENGTH] * WEIGHTS.conv_CT[:, j] for j in range(4 - taps, 4))
    mixed = mixed / (1 + np.exp(-mixed))
    q, k, v = np.split(mixed, [KH * DK, 2 * KH * DK], axis=1)
    unit = lambda x: x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)  # noqa: E731
    q, k = (np.repeat(unit(x.reshape(-1, KH, DK)), H // KH, axis=1) for x in (q, k))
    q, v, beta = q * DK**-0.5, v.reshape(-1, H, DV), 1 / (1 + np.exp(-gates[:, :H]))
    decay = np.exp(-np.exp(WEIGHTS.decay_log) * np.log1p(np.exp(gates[:, H:] + WEIGHTS.time_bias)))
    state, out = np.zeros((H, DK, DV)), []
    for t in range(rows):
        state = decay[t, :, None, None] * state
        change = beta[t, :, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state = state + k[t, :, :, None] * change[:, None, :]
        out.append(np.einsum("hkv,hk->hv", state, q[t]))
    return np.stack(out), state


@pytest.fixture(scope="module")
def plain():
    """Each lane run alone, in tiles of sixteen from row 0: read-outs, and states after rows 16, 32 and 40."""
    outs, states = [], []
    for lane in range(L):
        lanes, out, kept = Lanes(), [], {}
        for start in range(0, LENGTH, 16):
            stop = min(start + 16, LENGTH)
            out += lanes.run((lane, start, stop))
            kept[stop] = np.asarray(lanes.state.committed[lane])
        outs.append(np.concatenate(out))
        states.append(kept)
    return outs, states


def test_rows_follow_the_formula(plain):
    for lane in range(L):
        out, state = formula(lane, LENGTH)
        np.testing.assert_allclose(plain[0][lane], out, atol=2e-5)
        np.testing.assert_allclose(plain[1][lane][LENGTH], state, atol=2e-5)
    assert not np.allclose(plain[0][0], formula(0, LENGTH, taps=3)[0], atol=1e-2)


def test_rows_one_by_one_have_the_bits_of_whole_tiles(plain):
    lanes = Lanes()
    out = [lanes.run((1, t, t + 1))[0] for t in range(16)]
    assert unequal(np.concatenate(out), plain[0][1][:16]) == 0
    assert unequal(lanes.state.committed[1], plain[1][1][16]) == 0


def test_company_and_place_in_the_tile_change_no_bit(plain):
    lanes = Lanes()
    first = lanes.run((2, 0, 5), (0, 0, 4), (1, 0, 7))
    second = lanes.run((1, 7, 16), (2, 5, 6))
    third = lanes.run((0, 4, 14), (2, 6, 12))
    found = {0: [first[1], third[0]], 1: [first[2], second[0]], 2: [first[0], second[1], third[1]]}
    for lane, pieces in found.items():
        joined = np.concatenate(pieces)
        assert unequal(joined, plain[0][lane][: len(joined)]) == 0
    assert unequal(lanes.state.committed[1], plain[1][1][16]) == 0


def test_a_tall_block_of_rows_has_the_bits_of_tiles(plain):
    lanes = Lanes()
    lanes.run((0, 0, 3))
    found = dict(zip((1, 0), lanes.run((1, 0, 37), (0, 3, 34)), strict=True))
    assert unequal(found[1], plain[0][1][:37]) == 0 and unequal(found[0], plain[0][0][3:34]) == 0
    after = dict(zip((0, 1), lanes.run((0, 34, 40), (1, 37, 40)), strict=True))
    assert unequal(after[0], plain[0][0][34:]) == 0 and unequal(after[1], plain[0][1][37:]) == 0
    assert unequal(lanes.state.committed[1], plain[1][1][40]) == 0


def test_a_dropped_convolution_tail_is_told_apart(plain):
    lanes = Lanes(0.0)
    lanes.run((0, 0, 8))
    lanes.state = DeltaState(committed=lanes.state.committed, ring=jnp.zeros_like(lanes.state.ring))
    found = lanes.run((0, 8, 16))[0]
    assert unequal(found[:3], plain[0][0][8:11]) and unequal(found, plain[0][0][8:16])


def test_drafts_leave_the_committed_state_alone_and_accepted_ones_are_replayed(plain):
    lanes = Lanes()
    lanes.run((1, 0, 11), (0, 0, 5))
    before = np.asarray(lanes.state.committed)
    out = lanes.run((1, 11, 16, 12), (0, 5, 7, 6))
    assert unequal(np.concatenate([out[0], out[1]]), np.concatenate([plain[0][1][11:16], plain[0][0][5:7]])) == 0
    assert unequal(lanes.state.committed[1], before[1])
    pieces = Lanes()
    pieces.state, pieces.folded = lanes.state, lanes.folded.copy()
    lanes.commit(7, 16, 0)
    pieces.commit(7, 13, 0)
    pieces.commit(7, 16, 0)
    for found in (lanes, pieces):
        assert unequal(found.state.committed[1], plain[1][1][16]) == 0
        assert not np.asarray(found.state.committed[2]).any()


def test_the_next_tile_takes_accepted_rows_in_by_itself(plain):
    lanes = Lanes()
    lanes.run((1, 0, 10))
    lanes.run((1, 10, 16, 11))
    out = lanes.run((1, 14, 30))[0]
    assert unequal(out, plain[0][1][14:30]) == 0
    rest = lanes.run((1, 30, 32))[0]
    assert unequal(rest, plain[0][1][30:32]) == 0
    assert unequal(lanes.state.committed[1], plain[1][1][32]) == 0


def test_rejected_rows_leave_no_trace(plain):
    lanes = Lanes()
    lanes.run((0, 0, 12))
    kept = RAW[0].copy()
    RAW[0, 13:] *= -1
    try:
        lanes.run((0, 12, 20, 13))
    finally:
        RAW[0] = kept
    out = lanes.run((0, 13, 16))[0]
    assert unequal(out, plain[0][0][13:16]) == 0
    assert unequal(lanes.state.committed[0], plain[1][0][16]) == 0


def test_a_tile_without_live_rows_changes_no_bit():
    lanes = Lanes()
    lanes.run((0, 0, 9), (2, 0, 5))
    before = jax.device_get(lanes.state)
    lanes.run()
    assert unequal(lanes.state, before) == 0


def test_signed_zeros_of_a_state_survive_a_fold_that_takes_nothing_in():
    state = empty(-0.0)
    five = np.full(L, 5, np.int32)
    assert unequal(folded_to(state, five, five), state) == 0
