"""The search closes its rings, comes as close as the golden search and as its definition, and ignores neighbours."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from pallas_kernels.exl3.codebook import codebook_table
from pallas_kernels.trellis_search import Ring, costs, search_rings
from pallas_kernels.trellis_search.reference import search_ring_reference
from pallas_kernels.trellis_search.tuning import CPU, Blocks, blocks_for

CASES = [("mul1", 2), ("mul1", 2.5), ("mul1", 3), ("3inst", 3), ("mul1", 4), ("mcg", 4), ("mul1", 6)]
FEW = Blocks(rings=4, count=2)


@pytest.fixture(scope="module")
def vectors(golden):
    return load_file(golden / "exl3" / "search.safetensors")


def squared_error(states: np.ndarray, target: np.ndarray, codebook: str) -> np.ndarray:
    return np.square(codebook_table(codebook).astype(np.float64)[states] - target).sum(axis=-1)


@pytest.mark.parametrize(("codebook", "bits"), CASES)
def test_rings_close_and_come_as_close_as_the_golden_search(vectors, codebook, bits):
    target, best = (vectors[f"{codebook}.{bits}.{part}"] for part in ("target", "sqerr_f64"))
    states = search_rings(target, bits, codebook, blocks=FEW)
    assert states.dtype == np.uint16
    assert Ring(256, bits).closes(states).all()
    assert np.all(squared_error(states, target, codebook) <= 1.005 * best)


@pytest.mark.parametrize(("codebook", "bits"), CASES)
def test_float16_costs_choose_the_golden_states(vectors, codebook, bits):
    target, golden_states = (vectors[f"{codebook}.{bits}.{part}"] for part in ("target", "states_fp16"))
    states = search_rings(target, bits, codebook, costs="float16", blocks=FEW)
    assert np.array_equal(states, golden_states)


def test_the_golden_vectors_tell_the_two_arithmetics_apart(vectors):
    differ = [np.any(vectors[f"{c}.{b}.states_f64"] != vectors[f"{c}.{b}.states_fp16"]) for c, b in CASES]
    assert sum(differ) >= 3
    assert {name.rpartition(".")[0] for name in vectors} == {f"{c}.{b}" for c, b in CASES}


@pytest.mark.parametrize(("bits", "length"), [(1, 32), (1.5, 34), (3, 32), (8, 16)])
def test_the_search_is_its_definition(bits, length):
    ring, values = Ring(length, bits), codebook_table("mul1").astype(np.float32)
    target = np.random.default_rng(length).standard_normal((2, length)).astype(np.float32)
    states = search_rings(target, bits, blocks=FEW)
    assert ring.closes(states).all()
    defined = np.stack([search_ring_reference(row, values, ring) for row in target])
    assert ring.closes(defined).all()
    assert squared_error(states, target, "mul1") == pytest.approx(squared_error(defined, target, "mul1"), rel=1e-5)


@pytest.mark.parametrize("bits", [2.5, 3])
def test_values_that_a_ring_spells_are_found_again(vectors, bits):
    spelled = codebook_table("mul1").astype(np.float32)[vectors[f"mul1.{bits}.states_f64"]]
    states = search_rings(spelled, bits, blocks=FEW)
    assert np.array_equal(codebook_table("mul1")[states].astype(np.float32), spelled)


def test_a_ring_does_not_depend_on_its_neighbours():
    target = np.random.default_rng(0).standard_normal((9, 256)).astype(np.float32)
    together = search_rings(target, 3, blocks=FEW)
    assert np.array_equal(search_rings(target[::-1], 3, blocks=FEW), together[::-1])
    assert np.array_equal(search_rings(target[4:5], 3, blocks=FEW), together[4:5])


def test_no_rings_are_no_rings():
    assert search_rings(np.zeros((0, 256), np.float32), 3, blocks=FEW).shape == (0, 256)


def test_states_that_do_not_overlap_are_told(vectors):
    ring, states = Ring(256, 3), vectors["mul1.3.states_f64"]
    assert ring.closes(states).all()
    assert not ring.closes(np.roll(states[:, ::-1], 1, axis=1)).any()
    open_ring = states.copy()
    open_ring[:, -1] ^= 1  # the last position's newest bit is the first one's third
    assert not ring.closes(open_ring).any()


def test_half_widths_bring_their_odd_bit_at_odd_positions():
    assert Ring(256, 2.5).new_bits(np.arange(5)).tolist() == [2, 3, 2, 3, 2]
    assert Ring(256, 3).new_bits(np.arange(3)).tolist() == [3, 3, 3]


def test_rounding_to_halves_is_that_of_float16():
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(200_000) * 2.0 ** rng.integers(-27, 14, 200_000)).astype(np.float32)
    assert np.array_equal(jax.jit(costs.to_half)(x), x.astype(np.float16).astype(np.float32))


def test_a_float16_cost_is_rounded_once():
    rng = np.random.default_rng(1)
    before = np.abs(rng.standard_normal(300_000) * 2.0 ** rng.integers(-24, 6, 300_000)).astype(np.float16)
    distance = (rng.standard_normal(300_000) * 2.0 ** rng.integers(-10, 4, 300_000)).astype(np.float16)
    exact = before.astype(np.float64) + np.square(distance.astype(np.float64))
    found = jax.jit(costs.add_cost, static_argnums=3)(
        before.astype(np.float32), distance.astype(np.float32), np.zeros(1, np.float32), "float16"
    )
    assert np.array_equal(found, exact.astype(np.float16).astype(np.float32))
    twice = exact.astype(np.float32).astype(np.float16)
    assert np.any(twice != exact.astype(np.float16))  # so that the comparison above can fail


def test_equal_float16_costs_are_decided_as_by_halving_lanes():
    """Threads keep the first of their stride; lanes, then warps, are halved with the lower one kept."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        cost = rng.integers(0, 3, 8192) * (rng.random(8192) < 0.995) + 1
        by_thread = cost.reshape(-1, 1024)
        best = [(by_thread[:, t].min(), t, int(by_thread[:, t].argmin())) for t in range(1024)]
        winners = [_halve(best[warp * 32 : warp * 32 + 32]) for warp in range(32)]
        _, thread, stride = _halve(winners)
        order = costs.edge_order(8192, "float16")
        assert order[cost[order].argmin()] == stride * 1024 + thread


def _halve(entries: list) -> tuple:
    while len(entries) > 1:
        half = len(entries) // 2
        entries = [a if a[0] <= b[0] else b for a, b in zip(entries[:half], entries[half:], strict=True)]
    return entries[0]


def test_other_devices_get_blocks_as_large_as_the_work():
    assert blocks_for("cpu", 10**6) == CPU
    assert blocks_for("gpu", 40).rings < blocks_for("gpu", 10**6).rings


@pytest.mark.parametrize(
    ("target", "bits", "codebook", "message"),
    [
        (np.zeros((1, 256), np.float32), 4.5, "mul1", "4.5 bits"),
        (np.zeros((1, 256), np.float32), 2.5, "mcg", "half widths exist with mul1 only"),
        (np.zeros((1, 256), np.float32), 3, "sqg", "no codebook 'sqg'"),
        (np.zeros(256, np.float32), 3, "mul1", r"float32 \[256\]"),
        (np.zeros((1, 256)), 3, "mul1", "float64"),
        (np.full((1, 256), np.inf, np.float32), 3, "mul1", "not finite"),
        (np.zeros((1, 33), np.float32), 1.5, "mul1", "33 values"),
        (np.zeros((1, 3), np.float32), 3, "mul1", "3 values"),
    ],
)
def test_what_cannot_be_searched_is_named(target, bits, codebook, message):
    with pytest.raises(ValueError, match=message):
        search_rings(target, bits, codebook)


def test_unknown_costs_and_blocks_are_named():
    with pytest.raises(ValueError, match="no costs 'bfloat16'"):
        search_rings(np.zeros((1, 256), np.float32), 3, costs="bfloat16")
    with pytest.raises(ValueError, match="0 rings"):
        Blocks(rings=0, count=1)
