"""Matmuls of [out, in] weights: the formula, and equal bits for any rows and any block of columns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import exl3
from pallas_kernels.dense_matmul import dense_matmul, features, leading_outputs, linear
from pallas_kernels.dense_matmul.shapes import SMALL_SHAPES
from pallas_kernels.exl3 import Exl3Weight, decoded
from tests.sweep.dense_cases import packed

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}
MATMUL = jax.jit(dense_matmul)


def operands(inputs: int, outputs: int, dtype: str) -> tuple[np.ndarray, jax.Array]:
    rng = np.random.default_rng(inputs)
    weight = (0.1 * rng.standard_normal((outputs, inputs))).astype(np.float32)
    return rng.standard_normal((40, inputs)).astype(np.float32), jnp.asarray(weight).astype(DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SMALL_SHAPES.values(), ids=SMALL_SHAPES)
def test_products_are_the_formula_of_rounded_operands(shape, dtype):
    x, weight = operands(shape.in_features, shape.out_features, dtype)
    rounded = np.asarray(jnp.asarray(x).astype(DTYPES[dtype]), np.float64)
    found = MATMUL(x, weight)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, rounded @ np.asarray(weight, np.float64).T, atol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_have_equal_bits_in_any_number(dtype):
    x, weight = operands(640, 48, dtype)
    whole = np.asarray(MATMUL(x, weight))
    for rows in (1, 2, 17):
        assert np.array_equal(MATMUL(x[:rows], weight), whole[:rows])
    assert np.array_equal(MATMUL(x.reshape(2, 20, 640), weight).reshape(40, 48), whole)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_precision_that_jax_is_set_to_changes_nothing(dtype):
    x, weight = operands(640, 48, dtype)
    plain = np.asarray(jax.jit(lambda x: dense_matmul(x, weight))(x))
    with jax.default_matmul_precision("F16_F16_F16"):
        assert np.array_equal(jax.jit(lambda x: dense_matmul(x, weight))(x), plain)
        dot = jax.lax.dot(jnp.asarray(x, weight.dtype), weight.T, preferred_element_type=jnp.float32)
    assert np.abs(dot - plain).max() > 1e-4  # a dot without a precision of its own is another


def untiled(x: jax.Array, weight: jax.Array) -> jax.Array:
    """A wrong twin: as many rows as there are, the weight stored [in, out]."""
    return jax.lax.dot(x, weight.T, preferred_element_type=jnp.float32, precision=jax.lax.Precision.HIGHEST)


def test_an_untiled_product_is_told_apart():
    x, weight = operands(640, 48, "float32")
    whole = np.asarray(jax.jit(untiled)(x, weight))
    assert any(not np.array_equal(jax.jit(untiled)(x[:rows], weight), whole[:rows]) for rows in (1, 2, 17))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [2, 3])
def test_blocks_of_columns_have_the_bits_of_the_whole(parts, dtype):
    x, weight = operands(256, 768, dtype)
    blocks = [MATMUL(x[:16], block) for block in np.split(np.asarray(weight), parts)]
    assert np.array_equal(np.concatenate(blocks, axis=1), MATMUL(x[:16], weight))


def test_rows_narrower_than_an_exl3_weight_are_extended_by_zeros():
    weight = packed(1, 256, 128, 4)
    x = np.random.default_rng(0).standard_normal((3, 200)).astype(np.float32)
    widened = np.concatenate([x, np.zeros((3, 56), np.float32)], axis=1)
    found = jax.jit(linear)(x, weight)
    assert np.array_equal(found, jax.jit(exl3.linear)(widened, weight))
    assert np.array_equal(found, jax.jit(linear)(x, exl3.decoded(weight)))


def test_features_that_do_not_meet_are_refused():
    with pytest.raises(ValueError, match="dense_matmul: 3 features meet a weight of 4"):
        dense_matmul(jnp.zeros((2, 3)), jnp.zeros((5, 4)))


@pytest.mark.parametrize("kind", ["plain", "packed", "decoded"])
def test_leading_outputs_are_those_of_the_whole_layer(kind):
    rng = np.random.default_rng(3)
    if kind == "plain":
        weight = jnp.asarray(rng.normal(size=(384, 128)), jnp.float32)
    else:
        words = rng.integers(0, 2**32, (8, 24, 32), dtype=np.uint32)
        scales = dict(suh=np.ones(128, np.float16), svh=rng.normal(size=384).astype(np.float16))
        weight = Exl3Weight(words=words, codebook="mul1", **scales)
        weight = decoded(weight, np.float16) if kind == "decoded" else weight
    x = jnp.asarray(rng.normal(size=(3, 128)), jnp.float32)
    assert np.array_equal(linear(x, leading_outputs(weight, 256)), linear(x, weight)[:, :256])
    assert leading_outputs(weight, 384) is weight and features(leading_outputs(weight, 128)) == (128, 128)


def test_a_rotation_is_not_cut():
    weight = Exl3Weight(
        words=np.zeros((8, 16, 32), np.uint32),
        suh=np.ones(128, np.float16),
        svh=np.ones(256, np.float16),
        codebook="mul1",
    )
    with pytest.raises(ValueError, match="100 outputs"):
        leading_outputs(weight, 100)
