"""Quantized layers are layers of the format, as close to their weights as the format allows, and refuse bad input."""

import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from checkpoints import quantize
from checkpoints.quantiser import ldlq, refit
from checkpoints.quantize import Group, prepare_hessian, quantize_groups, quantize_linear, quantize_linears
from pallas_kernels.exl3 import decode_numpy, from_arrays
from tests.reference import numpy_exl3 as oracle

SIZE = 128
SOME_SCALE = 0.75


def gaussian(K: int = SIZE, N: int = SIZE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((K, N)).astype(np.float32)


def matrix(arrays: dict) -> np.ndarray:
    """W as the independent reader spells it."""
    return oracle.layer_matrix({f"w.{part}": array for part, array in arrays.items()}, "w")


def share(error: np.ndarray, weight: np.ndarray, hessian: np.ndarray | None = None) -> float:
    """Squared error by that of the weight, of outputs where there is a Hessian."""
    if hessian is None:
        return float(np.sum(error**2) / np.sum(weight**2))
    return float(np.sum(error * (hessian @ error)) / np.sum(weight * (hessian @ weight)))


@pytest.fixture(scope="module")
def hessian() -> np.ndarray:
    """Of inputs with a decaying spectrum in a random basis."""
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.standard_normal((SIZE, SIZE)))[0]
    inputs = rng.standard_normal((2048, SIZE)) * np.exp(-np.arange(SIZE) / 16) @ turn
    return inputs.T @ inputs / len(inputs)


@pytest.fixture
def at_once(monkeypatch):
    """Without the scale search, whose answer these tests do not need."""
    monkeypatch.setattr(quantize, "find_scale", lambda *_: SOME_SCALE)


@pytest.fixture
def unsearched(monkeypatch, at_once):
    """Without any search: the trellis spells nothing, but the scales are those of perfect values."""
    monkeypatch.setattr(ldlq, "search", lambda tiles, *_: (np.zeros(tiles.shape, np.uint16), tiles))


@pytest.fixture(scope="module")
def plain() -> dict:
    return quantize_linear(gaussian(), 3)


def test_gaussian_weights_come_back_as_close_as_the_format_allows(plain):
    assert share(matrix(plain) - gaussian(), gaussian()) <= 1.03 * 0.01740


def test_half_widths_lie_between_whole_ones(at_once):
    arrays = quantize_linear(gaussian(), 2.5)
    assert from_arrays(arrays).bits == 2.5
    assert share(matrix(arrays) - gaussian(), gaussian()) <= 1.03 * 0.03443


def test_the_arrays_are_those_of_a_file(plain):
    assert {part: (str(array.dtype), array.shape) for part, array in plain.items()} == {
        "trellis": ("int16", (8, 8, 48)),
        "suh": ("float16", (SIZE,)),
        "svh": ("float16", (SIZE,)),
        "mul1": ("int32", ()),
    }
    assert from_arrays(plain).bits == 3
    assert np.array_equal(decode_numpy(plain["trellis"], "mul1"), oracle.inner_matrix(plain["trellis"], "mul1"))


def test_feedback_trades_error_of_weights_for_error_of_outputs(plain, hessian, monkeypatch, at_once):
    weight = gaussian()
    refitted = matrix(quantize_linear(weight, 3, hessian=hessian)) - weight
    monkeypatch.setattr(quantize, "refit_scales", lambda weight, inner, su, sv, *_: (su, sv))
    fed_back = matrix(quantize_linear(weight, 3, hessian=hessian)) - weight
    alone = matrix(plain) - weight
    assert share(fed_back, weight) > 1.3 * share(alone, weight)
    assert share(fed_back, weight, hessian) < 0.35 * share(alone, weight, hessian)
    assert share(refitted, weight, hessian) < share(fed_back, weight, hessian)


def test_feedback_of_the_wrong_sign_is_told(plain, hessian, monkeypatch, at_once):
    weight = gaussian()
    kept = quantize.search_matrices
    turned = lambda fed: replace(fed, lower_KK=-fed.lower_KK)  # noqa: E731
    monkeypatch.setattr(quantize, "search_matrices", lambda feds, *rest: kept([turned(fed) for fed in feds], *rest))
    wrong = matrix(quantize_linear(weight, 3, hessian=hessian)) - weight
    assert share(wrong, weight, hessian) > share(matrix(plain) - weight, weight, hessian)


def test_the_same_arguments_give_the_same_layer(at_once):
    first, again, other = (quantize_linear(gaussian(), 3, seed=seed) for seed in (0, 0, 1))
    assert all(np.array_equal(first[part], again[part]) for part in first)
    assert np.any(np.signbit(first["suh"]) != np.signbit(other["suh"]))
    assert np.any(np.signbit(first["svh"]) != np.signbit(other["svh"]))


def test_layers_together_are_those_of_each_alone(at_once):
    weights = [gaussian(seed=1), gaussian(seed=2)]
    for together, weight in zip(quantize_linears(weights, 3), weights, strict=True):
        alone = quantize_linear(weight, 3)
        assert all(np.array_equal(together[part], alone[part]) for part in alone)


def test_groups_together_are_those_of_each_alone(at_once, hessian):
    other = hessian[::-1, ::-1] + np.eye(SIZE, dtype=hessian.dtype)
    groups = [
        Group((gaussian(seed=1), gaussian(seed=2)), prepare_hessian(hessian, SIZE, 3), 3),
        Group((gaussian(seed=3),), prepare_hessian(other, SIZE, 4), 4),
        Group((gaussian(seed=4),), None, 5),
    ]
    for group, layers in zip(groups, quantize_groups(groups, 3), strict=True):
        alone = quantize_linears(group.weights, 3, hessian=group.hessian, seed=group.seed)
        for found, wanted in zip(layers, alone, strict=True):
            assert all(np.array_equal(found[part], wanted[part]) for part in wanted)


def test_a_prepared_hessian_is_that_hessian(at_once, hessian):
    given = quantize_linear(gaussian(), 4, hessian=hessian, seed=3)
    prepared = quantize_linear(gaussian(), 4, hessian=prepare_hessian(hessian, SIZE, 3), seed=3)
    assert all(np.array_equal(given[part], prepared[part]) for part in given)


def test_odd_sizes_are_padded_with_channels_that_do_nothing(at_once, hessian):
    weight = gaussian(100, 200)
    for given in (None, hessian[:100, :100]):
        arrays = quantize_linear(weight, 4, hessian=given)
        assert arrays["trellis"].shape == (8, 16, 64)
        assert not arrays["suh"][100:].any() and not arrays["svh"][200:].any()
        stored = matrix(arrays)
        assert not stored[100:].any() and not stored[:, 200:].any()
        assert share(stored[:100, :200] - weight, weight, given) < 0.02


def test_dead_outputs_stay_exactly_dead(at_once):
    weight = gaussian()
    weight[:, 5] = 0
    stored = matrix(quantize_linear(weight, 3))
    assert not stored[:, 5].any()
    assert share(stored - weight, weight) < 0.03
    assert not matrix(quantize_linear(np.zeros_like(weight), 3)).any()


def test_an_input_that_no_weight_uses_keeps_none(at_once):
    weight = gaussian()
    weight[7] = 0
    assert share(matrix(quantize_linear(weight, 3)) - weight, weight) < 0.03
    assert np.abs(matrix(quantize_linear(weight, 3))[7]).max() < 0.1


@pytest.mark.parametrize("exponent", [-20, 20])
def test_weights_far_from_one_keep_their_precision(at_once, exponent):
    weight = gaussian() * np.float32(2.0**exponent)
    assert share(matrix(quantize_linear(weight, 4)) - weight, weight) < 0.006


def test_output_scales_may_be_left_to_signs(unsearched, hessian):
    weight = gaussian() * np.geomspace(0.2, 5, SIZE, dtype=np.float32)
    never, always = (quantize_linear(weight, 4, out_scales=choice) for choice in ("never", "always"))
    assert np.array_equal(np.abs(never["svh"]), np.ones(SIZE))
    assert np.ptp(np.abs(always["svh"])) > 1
    few_loud = hessian.copy()
    few_loud[3, 3] = 1e6
    assert np.array_equal(np.abs(quantize_linear(weight, 4, hessian=few_loud, out_scales="auto")["svh"]), np.ones(SIZE))
    assert np.ptp(np.abs(quantize_linear(weight, 4, out_scales="auto")["svh"])) > 1
    prepared = prepare_hessian(few_loud, SIZE)
    assert np.array_equal(np.abs(quantize_linear(weight, 4, hessian=prepared, out_scales="auto")["svh"]), np.ones(SIZE))


def test_wide_matrix_takes_few_times_its_size(unsearched, monkeypatch):
    """Parts as small beside this matrix as they are beside the widest ones."""
    monkeypatch.setattr(ldlq, "_TILES", 256)
    monkeypatch.setattr(refit, "_COLUMNS", 256)
    weight = gaussian(1024, 1024)
    tracemalloc.start()
    try:
        quantize_linear(weight, 4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4.5 * weight.nbytes


def test_inputs_that_were_all_zero_weigh_nothing(unsearched):
    unseen = np.zeros((SIZE, SIZE))
    given, none = (quantize_linear(gaussian(), 3, hessian=hessian) for hessian in (unseen, None))
    assert all(np.array_equal(given[part], none[part]) for part in none)


def test_codebook_3inst_has_no_marker(unsearched):
    arrays = quantize_linear(gaussian(), 4, "3inst")
    assert arrays.keys() == {"trellis", "suh", "svh"}
    assert from_arrays(arrays).codebook == "3inst"
    assert from_arrays(quantize_linear(gaussian(), 4, "mcg")).codebook == "mcg"


WRONG = np.full((SIZE, SIZE), np.nan, np.float32)


@pytest.mark.parametrize(
    ("weight", "arguments", "message"),
    [
        (gaussian(), {"bits": 4.5}, "4.5 bits with codebook mul1"),
        (gaussian(), {"bits": 2.5, "codebook": "mcg"}, "2.5 bits with codebook mcg"),
        (gaussian(), {"bits": 9}, "9 bits"),
        (gaussian(), {"bits": 3, "codebook": "sqg"}, "no codebook 'sqg'"),
        (gaussian(), {"bits": 3, "out_scales": "maybe"}, "out_scales 'maybe'"),
        (WRONG, {"bits": 3}, "weight .* not finite"),
        (gaussian().astype(np.float64) * 1e60, {"bits": 3}, "weight .* not finite"),
        (gaussian()[0], {"bits": 3}, r"weight \[128\]"),
        (gaussian()[:0], {"bits": 3}, r"weight \[0, 128\]"),
        (gaussian(), {"bits": 3, "hessian": np.eye(127)}, r"Hessian \[127, 127\], wanted \[128, 128\]"),
        (gaussian(), {"bits": 3, "hessian": WRONG}, "Hessian holds a value that is not finite"),
        (gaussian(), {"bits": 3, "hessian": -np.eye(SIZE)}, "negative mean square"),
        (gaussian(), {"bits": 3, "hessian": prepare_hessian(np.eye(64), 64)}, "Hessian of 64 inputs for .* 128"),
    ],
)
def test_what_cannot_be_quantized_is_named(weight, arguments, message, monkeypatch):
    monkeypatch.setattr(quantize, "find_scale", lambda *_: pytest.fail("searched before it checked"))
    with pytest.raises(ValueError, match=message):
        quantize_linear(weight, **arguments)


def test_weights_that_float16_scales_cannot_size_are_named(at_once):
    with pytest.raises(ValueError, match="float16 cannot hold their scales"):
        quantize_linear(gaussian() * np.float32(1e12), 3)


def test_weights_of_unlike_inputs_do_not_go_together():
    with pytest.raises(ValueError, match="K the same for all"):
        quantize_linears([gaussian(), gaussian(K=256)], 3)
    with pytest.raises(ValueError, match="no weights"):
        quantize_linears([], 3)


def test_importing_it_needs_no_jax():
    code = "import sys, checkpoints.quantize; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
