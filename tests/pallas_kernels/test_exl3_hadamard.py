"""The rotations have the golden bits, in their own order of additions, as functions and as kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from pallas_kernels.exl3.hadamard import SCALE, rotate, rotate_input, rotate_output
from pallas_kernels.exl3.hadamard_kernel import rotate_input_kernel, rotate_output_kernel


@pytest.fixture(scope="module")
def rotations(golden):
    return load_file(golden / "exl3" / "rotations.safetensors")


def rows_of(rng: np.random.Generator, rows: int, channels: int) -> np.ndarray:
    # Small values too, so that float16 subnormals are met.
    return (rng.standard_normal((rows, channels)) * 10.0 ** rng.integers(-6, 1, (rows, 1))).astype(np.float32)


def test_the_input_rotation_has_the_golden_bits(rotations):
    got = jax.jit(rotate_input)(rotations["in.x"].astype(np.float32), rotations["in.suh"])
    assert np.array_equal(np.asarray(got).view(np.uint16), rotations["in.xh_fp16"].view(np.uint16))


def test_the_output_rotation_has_the_golden_bits(rotations):
    got = jax.jit(rotate_output)(rotations["out.acc"], rotations["out.svh"])
    assert np.array_equal(np.asarray(got).view(np.uint32), rotations["out.y_fp32"].view(np.uint32))


def test_another_order_of_additions_is_told(rotations):
    values = rotations["out.acc"].reshape(4, 2, 128)
    for stride in (64, 32, 16, 8, 4, 2, 1):
        pairs = values.reshape(4, 2, 64 // stride, 2, stride)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        values = np.stack([first + second, first - second], axis=-2).reshape(4, 2, 128)
    y = (values * SCALE).reshape(4, 256) * rotations["out.svh"].astype(np.float32)
    assert np.allclose(y, rotations["out.y_fp32"], rtol=1e-5, atol=1e-5)
    assert not np.array_equal(y, rotations["out.y_fp32"])


def test_exact_mode_rounds_nothing_to_float16(rotations):
    got = jax.jit(lambda x, suh: rotate_input(x, suh, "float32"))(rotations["in.x"], rotations["in.suh"])
    exact = rotations["in.xh64"]
    assert got.dtype == jnp.float32
    assert np.linalg.norm(got - exact) < 1e-6 * np.linalg.norm(exact)


def test_the_rotation_is_its_own_inverse():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 256)), jnp.float32)
    assert np.allclose(rotate(rotate(x)), x, atol=1e-5)


def test_scales_may_differ_by_row():
    rng = np.random.default_rng(1)
    x, suh_RK = rows_of(rng, 3, 256), rng.standard_normal((3, 256)).astype(np.float16)
    by_row = jax.jit(rotate_input)(x, suh_RK)
    outputs = jax.jit(rotate_output)(x, suh_RK, suh_RK)
    for r in range(3):
        assert np.array_equal(by_row[r], jax.jit(rotate_input)(x[r], suh_RK[r]))
        assert np.array_equal(outputs[r], jax.jit(rotate_output)(x[r], suh_RK[r], suh_RK[r]))


@pytest.mark.parametrize("operand_dtype", ["float16", "float32"])
def test_the_input_kernel_has_the_bits_of_the_function(operand_dtype):
    rng = np.random.default_rng(2)
    x, suh = rows_of(rng, 32, 256), rng.standard_normal(256).astype(np.float16)
    kernel = jax.jit(lambda x, suh: rotate_input_kernel(x, suh, operand_dtype, interpret=True))(x, suh)
    function = jax.jit(lambda x, suh: rotate_input(x, suh, operand_dtype))(x, suh)
    assert kernel.dtype == function.dtype and np.array_equal(kernel, function)


@pytest.mark.parametrize("has_bias", [False, True])
def test_the_output_kernel_has_the_bits_of_the_function(has_bias):
    rng = np.random.default_rng(3)
    sums, svh = rows_of(rng, 32, 256), rng.standard_normal(256).astype(np.float16)
    bias = svh[::-1].copy() if has_bias else None
    kernel = jax.jit(lambda *a: rotate_output_kernel(*a, interpret=True))(sums, svh, bias)
    assert np.array_equal(kernel, jax.jit(rotate_output)(sums, svh, bias))


def test_bits_do_not_depend_on_scales_being_constants(rotations):
    svh = rotations["out.svh"]
    captured = jax.jit(lambda acc: rotate_output(acc, svh))(rotations["out.acc"])
    assert np.array_equal(captured, rotations["out.y_fp32"])


def test_odd_widths_and_operand_dtypes_are_refused():
    with pytest.raises(ValueError, match="rotate: 192 channels"):
        rotate(jnp.zeros((2, 192)))
    with pytest.raises(ValueError, match="bfloat16"):
        rotate_input(jnp.zeros((2, 128)), jnp.zeros(128, jnp.float16), "bfloat16")  # type: ignore[arg-type]
