"""The quantizer's steps, each against its formula; none of them needs a device."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from checkpoints.quantiser import ldlq, refit, scale
from checkpoints.quantiser.feedback import evenly_loud, feedback_of
from checkpoints.quantiser.refit import refit_scales
from checkpoints.quantiser.regularise import _rms, regularise
from checkpoints.quantiser.rotation import _butterflies, rotate_columns, rotate_rows
from checkpoints.quantiser.tiles import from_tiles, pack_states, to_tiles
from tests.checkpoints.greedy_search import greedy_search
from tests.reference import numpy_exl3 as oracle


def signs(rng: np.random.Generator, channels: int) -> np.ndarray:
    return rng.choice(np.array([-1, 1], np.float32), channels)


def test_states_pack_to_the_golden_words(golden):
    tiles = load_file(golden / "exl3" / "tiles.safetensors")
    layers = sorted({name.rpartition(".")[0] for name in tiles})
    assert len(layers) == 27
    for layer in layers:
        states = tiles[f"{layer}.states"].astype(np.uint16)
        packed = pack_states(states, float(layer.partition(".")[2]))
        assert packed.dtype == np.int16
        assert np.array_equal(packed, tiles[f"{layer}.trellis"]), layer


def test_tiles_are_in_the_order_of_the_stream(golden):
    tiles = load_file(golden / "exl3" / "tiles.safetensors")
    values = oracle.codebook("mul1")[tiles["mul1.3.states"]]
    assert np.array_equal(from_tiles(values), tiles["mul1.3.wq"])
    assert np.array_equal(to_tiles(tiles["mul1.3.wq"]), values)


def test_rotations_are_the_hadamard_matrix_of_each_block():
    x = np.random.default_rng(0).standard_normal((256, 128))
    assert np.allclose(rotate_columns(x), oracle.rotate(x), atol=1e-12)
    assert np.allclose(rotate_rows(x), oracle.rotate(x.T).T, atol=1e-12)


@pytest.mark.parametrize("out_scales", [True, False])
def test_a_regular_matrix_spells_its_weights(out_scales):
    rng = np.random.default_rng(0)
    sizes = np.geomspace(0.01, 1, 256)[:, None] * np.geomspace(0.1, 10, 128)
    weight = (rng.standard_normal((256, 128)) * sizes).astype(np.float32)
    layer = regularise(weight, signs(rng, 256), signs(rng, 128), out_scales)
    spelled = layer.su_K[:, None] * rotate_rows(rotate_columns(layer.target_KN)) * layer.sv_N
    assert np.allclose(spelled, weight, rtol=1e-3, atol=1e-5)
    assert np.sqrt(np.mean(layer.target_KN**2)) == pytest.approx(1.24371, rel=1e-3)
    assert np.array_equal(np.abs(layer.sv_N) == 1, np.full(128, not out_scales))


def test_output_scales_are_dropped_where_few_inputs_are_loud():
    power = np.ones(100)
    assert evenly_loud(power)
    power[:2] *= 1e4
    assert not evenly_loud(power)


def test_the_factor_leaves_a_block_diagonal_hessian():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((100, 100))
    signs_K = signs(rng, 128)
    feedback = feedback_of(root.T @ root / 100, signs_K)
    assert feedback is not None and feedback.inputs == 100
    assert np.array_equal(feedback.damped_KK[100:, :100], np.zeros((28, 100)))
    damping = 0.025 * np.trace(root.T @ root / 100) / 100
    assert np.allclose(np.diagonal(feedback.damped_KK)[100:], damping)
    rotated = rotate_rows(rotate_columns(feedback.damped_KK.astype(np.float64) * signs_K * signs_K[:, None]))
    unit = np.linalg.inv(np.eye(128) + feedback.lower_KK)
    rest = (unit @ rotated @ unit.T).reshape(8, 16, 8, 16).swapaxes(1, 2)
    assert np.abs(rest[~np.eye(8, dtype=bool)]).max() < 1e-5 * np.abs(rest).max()
    assert not np.triu(feedback.lower_KK.reshape(8, 16, 8, 16).swapaxes(1, 2).any(axis=(2, 3))).any()


def test_inputs_that_were_never_there_give_no_feedback():
    assert feedback_of(np.zeros((128, 128)), np.ones(128, np.float32)) is None


def test_an_indefinite_hessian_is_refused():
    indefinite = np.full((128, 128), 5.0) - 4 * np.eye(128)
    with pytest.raises(ValueError, match="not positive definite"):
        feedback_of(indefinite, np.ones(128, np.float32))
    with pytest.raises(ValueError, match="negative mean square"):
        feedback_of(-np.eye(128), np.ones(128, np.float32))


def test_rows_make_up_for_the_errors_below_them(monkeypatch):
    """With a search that rounds, the matrix is (target - found) corrected by the rows below, from last to first."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(ldlq, "search", lambda tiles, *_: (np.zeros(tiles.shape, np.uint16), np.round(tiles)))
    target = rng.standard_normal((64, 32)).astype(np.float32)
    lower = np.tril(rng.standard_normal((64, 64)), -1).astype(np.float32)
    lower[np.arange(64)[:, None] // 16 == np.arange(64) // 16] = 0
    states, found = ldlq.search_matrices([ldlq.Fed(target, lower)], 3, "mul1")[0]
    assert states.shape == (4, 2, 256)
    expected = np.zeros_like(target)
    for block in (3, 2, 1, 0):
        rows, below = slice(16 * block, 16 * block + 16), slice(16 * block + 16, None)
        expected[rows] = np.round(target[rows] + lower[below, rows].T @ (target - expected)[below])
    assert np.array_equal(found, expected)


def test_wide_matrices_are_searched_some_rows_at_a_time(monkeypatch):
    target = np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32)
    monkeypatch.setattr(ldlq, "search", greedy_search)
    whole = ldlq.search_matrices([ldlq.Fed(target, None)], 3, "mul1")[0]
    calls = []
    monkeypatch.setattr(ldlq, "search", lambda tiles, *rest: calls.append(len(tiles)) or greedy_search(tiles, *rest))
    monkeypatch.setattr(ldlq, "_TILES", 13)
    found = ldlq.search_matrices([ldlq.Fed(target, None)], 3, "mul1")[0]
    assert calls == [8, 12, 12]
    assert all(np.array_equal(a, b) for a, b in zip(found, whole, strict=True))


def test_parts_of_wide_matrices_have_the_bits_of_the_whole(monkeypatch):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((256, 384)).astype(np.float32)
    inner, su, sv = weight + rng.standard_normal(weight.shape).astype(np.float32), weight[:, 0], weight[0]
    for axis in (0, 1):
        whole = np.sqrt(np.mean(np.square(weight, dtype=np.float64), axis=axis)).astype(np.float32)
        assert np.array_equal(_rms(weight, axis), whole)
    assert np.array_equal(rotate_rows(weight), _butterflies(weight))
    assert np.array_equal(rotate_columns(weight), _butterflies(np.ascontiguousarray(weight.T)).T)
    monkeypatch.setattr(refit, "_parts", lambda channels, *_: [slice(0, channels)])
    whole = refit_scales(weight, inner, su, sv, None, True)
    monkeypatch.setattr(refit, "_parts", lambda channels, *_: [slice(i, i + 128) for i in range(0, channels, 128)])
    assert all(
        np.array_equal(a, b) for a, b in zip(refit_scales(weight, inner, su, sv, None, True), whole, strict=True)
    )


def test_refitted_scales_lower_the_error_of_the_outputs():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((128, 128)) * np.exp(-np.arange(128) / 20)
    hessian = (root.T @ root / 128 + 0.01 * np.eye(128)).astype(np.float32)
    weight = rng.standard_normal((128, 128)).astype(np.float32)
    inner = weight + 0.3 * rng.standard_normal((128, 128)).astype(np.float32)
    ones = np.ones(128, np.float32)

    def loss(su, sv, H):
        error = weight - su[:, None] * inner * sv
        return np.sum(error * (H @ error))

    for H in (None, hessian):
        weighing = np.eye(128, dtype=np.float32) if H is None else hessian
        su, sv = refit_scales(weight, inner, ones, ones, H, True)
        assert loss(su, sv, weighing) < 0.97 * loss(ones, ones, weighing)
        for nudge in (0.99, 1.01):  # su is solved for last
            nudged = su.copy()
            nudged[5] *= nudge
            assert loss(nudged, sv, weighing) > loss(su, sv, weighing)
        assert refit_scales(weight, inner, ones, ones, H, False)[1] is ones


def test_scales_of_nothing_are_left_alone():
    nothing, ones = np.zeros((128, 128), np.float32), np.ones(128, np.float32)
    for H in (None, np.eye(128, dtype=np.float32)):
        su, sv = refit_scales(nothing, nothing, ones, ones, H, True)
        assert np.array_equal(su, ones) and np.array_equal(sv, ones)


@pytest.mark.parametrize("best", [0.31, 0.74, 1.22])
def test_the_scale_that_a_quantizer_likes_best_is_found(monkeypatch, best):
    """A quantizer whose error is (s - best)^2 + 1, whatever it is given."""

    def search(targets, *_):
        scales = np.abs(targets).max(axis=1, keepdims=True)
        return None, targets + scales * np.sqrt((scales - best) ** 2 + 1).astype(np.float32)

    monkeypatch.setattr(scale, "search", search)
    assert scale.find_scale(np.ones((8, 8, 256), np.float32), 3, "mul1", False) == pytest.approx(best, abs=1e-3)


def test_feedback_is_allowed_for_at_low_widths(monkeypatch):
    seen = []
    monkeypatch.setattr(scale, "search", lambda targets, *_: (None, seen.append(targets.max()) or targets + 1))
    for bits, fed_back in ((1, True), (1, False), (4, True)):
        scale.find_scale(np.ones((8, 8, 256), np.float32), bits, "mul1", fed_back)
    assert seen[::2] == [pytest.approx(1.9 * growth) for growth in (1.08, 1, 1)]


def test_samples_are_all_tiles_or_diagonals_and_extremes():
    rng = np.random.default_rng(0)
    small = rng.standard_normal((8, 8, 256)).astype(np.float32)
    assert np.array_equal(scale.sample_tiles(small), small.reshape(64, 256))
    wide = rng.standard_normal((40, 24, 256)).astype(np.float32)
    wide[3, 5] *= 9
    wide[30, 2] *= 0.1
    samples = scale.sample_tiles(wide)
    assert samples.shape == (3 * 40 + 2 * 120, 256)
    for i, expected in ((0, wide[0, 0]), (25, wide[25, 1]), (40, wide[0, 1]), (120, wide[3, 5]), (240, wide[30, 2])):
        assert np.array_equal(samples[i], expected)
