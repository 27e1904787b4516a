"""The layer against golden outputs, and the row rule: a row's bits are its own."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from pallas_kernels.exl3 import DecodedWeight, Exl3Weight, decode_numpy, decoded, from_arrays, linear
from pallas_kernels.exl3.hadamard import OperandDtype, rotate_input

NAMES = [f"mul1_{bits}" for bits in "1 1p5 2p5 3p5 4 6 7 8".split()]
NAMES += ["mcg_3_bias", "mcg_4", "mixed_signs_3inst_5", "old_signs_3inst_2"]
RNG = np.random.default_rng(5)
OPERANDS = ["float16", "float32"]


@pytest.fixture(scope="module")
def goldens(golden):
    return load_file(golden / "exl3" / "linear.safetensors")


def case(goldens: dict[str, np.ndarray], name: str) -> tuple[Exl3Weight, dict[str, np.ndarray]]:
    tensors = {key.removeprefix(f"{name}."): value for key, value in goldens.items() if key.startswith(f"{name}.")}
    return from_arrays(tensors, name), {
        key.removeprefix(f"{name}/"): value for key, value in goldens.items() if key.startswith(f"{name}/")
    }


def hadamard_64(channels: int) -> np.ndarray:
    block = np.array([[1.0]])
    while len(block) < 128:
        block = np.block([[block, block], [block, -block]])
    return np.kron(np.eye(channels // 128), block / np.sqrt(128))


def distance(y, y64: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(y, np.float64) - y64) / np.linalg.norm(y64))


@cache
def weight_of(inputs: int = 256, outputs: int = 128, words: int = 20) -> Exl3Weight:
    rng = np.random.default_rng(6)
    return Exl3Weight(
        rng.integers(0, 2**32, (inputs // 16, outputs // 16, words), dtype=np.uint32),
        *(rng.standard_normal(n).astype(np.float16) for n in (inputs, outputs, outputs)),
        codebook="mul1",
    )


@cache
def compiled(operand_dtype: OperandDtype | None):
    return jax.jit(lambda x, weight: linear(x, weight, operand_dtype=operand_dtype))


def test_every_golden_layer_is_listed(goldens):
    assert {name.partition("/")[0] for name in goldens if "/" in name} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_layers_agree_with_the_golden_outputs(goldens, name):
    weight, wanted = case(goldens, name)

    @jax.jit
    def outputs(x, weight):
        exact = linear(x, weight, operand_dtype="float32")
        return rotate_input(x, weight.suh), linear(x, weight), exact

    operand, served, exact = outputs(wanted["x"].astype(np.float32), weight)
    assert np.array_equal(np.asarray(operand).view(np.uint16), wanted["xh_fp16"].view(np.uint16))
    assert served.dtype == exact.dtype == jnp.float32
    assert distance(served, wanted["y64"]) < 1e-3
    assert distance(served, wanted["y_fp32"].astype(np.float64)) < 2e-6
    assert distance(exact, wanted["y64"]) < 2e-6


@pytest.mark.parametrize("name", NAMES)
def test_the_formula_in_float64_meets_the_golden_outputs(goldens, name):
    weight, wanted = case(goldens, name)
    wq = decode_numpy(weight.words, weight.codebook).astype(np.float64)
    x = wanted["x"].astype(np.float64) * weight.suh.astype(np.float64)
    y = x @ hadamard_64(weight.in_features) @ wq @ hadamard_64(weight.out_features) * weight.svh.astype(np.float64)
    y = y if weight.bias is None else y + weight.bias.astype(np.float64)
    assert distance(y, wanted["y64"]) < 1e-12


def test_dead_outputs_give_the_bias_alone():
    weight = replace(weight_of(), svh=np.zeros(128, np.float16))
    assert np.array_equal(compiled("float16")(np.ones((2, 256), np.float32), weight)[1], weight.bias.astype(np.float32))


@pytest.mark.parametrize("operand_dtype", OPERANDS)
def test_a_layer_decoded_at_load_gives_the_same_bits(operand_dtype):
    x = RNG.standard_normal((5, 256)).astype(np.float32)
    wanted = compiled(operand_dtype)(x, weight_of())
    assert np.array_equal(compiled(operand_dtype)(x, decoded(weight_of())), wanted)
    if operand_dtype == "float32":
        assert np.array_equal(compiled(None)(x, decoded(weight_of(), np.float32)), wanted)
    else:
        assert np.array_equal(compiled(None)(x, weight_of()), wanted)


def rows_keep_their_bits(f, width: int) -> bool:
    """Whether each of 40 rows has one result: alone, at any place among others, in any number and order."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((40, width)).astype(np.float32)
    whole = np.asarray(f(x))
    for rows in (1, 17):
        taken = rng.permutation(40)[:rows]
        if not np.array_equal(f(x[taken]), whole[taken]):
            return False
    company = np.repeat(x[:1] * 1e4, 16, axis=0)
    for place in range(16):
        company[place] = x[3]
        if not np.array_equal(f(company)[place], whole[3]):
            return False
        company[place] = np.nan
    return True


@pytest.mark.parametrize(
    ("operand_dtype", "kind"), [("float16", "trellis"), ("float16", "decoded"), ("float32", "decoded")]
)
def test_a_row_keeps_its_bits_in_any_company(operand_dtype, kind):
    weight = weight_of() if kind == "trellis" else decoded(weight_of())
    weight = jax.tree.map(jnp.asarray, weight)
    assert rows_keep_their_bits(lambda x: compiled(operand_dtype)(x, weight), 256)


def test_a_scale_shared_by_the_rows_of_a_call_is_told():
    weight = jax.tree.map(jnp.asarray, decoded(weight_of()))

    @jax.jit
    def twin(x):
        scale = jnp.max(jnp.abs(x))
        return linear(x / scale, weight) * scale

    assert not rows_keep_their_bits(twin, 256)


@pytest.mark.parametrize("operand_dtype", OPERANDS)
def test_a_block_of_columns_has_the_bits_of_the_whole(operand_dtype):
    whole = decoded(weight_of(256, 384))
    x = RNG.standard_normal((3, 256)).astype(np.float32)
    part = DecodedWeight(whole.wq[128:256], whole.suh, whole.svh[128:256], whole.bias[128:256])
    got = compiled(operand_dtype)(x, part)
    assert np.array_equal(got, compiled(operand_dtype)(x, whole)[:, 128:256])


def test_bits_do_not_depend_on_the_surrounding_program():
    weight = jax.tree.map(jnp.asarray, decoded(weight_of(128, 128)))
    x = RNG.standard_normal((16, 128)).astype(np.float32)
    alone = compiled(None)(compiled(None)(x, weight), weight)
    chained = jax.jit(lambda x, w: linear(linear(x, w), w))(x, weight)
    looped = jax.jit(lambda x, w: jax.lax.fori_loop(0, 2, lambda _, y: linear(y, w), x))(x, weight)
    watched, _, _ = jax.jit(lambda x, w: ((y := linear(linear(x, w), w)), x * 2, y + x))(x, weight)
    for other in (chained, looped, watched):
        assert np.array_equal(alone, other)


@pytest.mark.parametrize("leading", [(), (0,), (2, 0), (2, 3), (1, 1, 5)])
def test_any_leading_axes_are_rows(leading):
    x = RNG.standard_normal((*leading, 256)).astype(np.float32)
    y = compiled(None)(x, weight_of())
    assert y.shape == (*leading, 128)
    assert np.array_equal(y.reshape(-1, 128), compiled(None)(x.reshape(-1, 256), weight_of()))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_narrow_activations_are_widened_first(dtype):
    x = jnp.asarray(RNG.standard_normal((2, 256)), dtype)
    assert np.array_equal(compiled(None)(x, weight_of()), compiled(None)(x.astype(jnp.float32), weight_of()))


def test_gradients_reach_the_activations():
    weight = jax.tree.map(jnp.asarray, decoded(weight_of(), np.float32))
    x = RNG.standard_normal((2, 256)).astype(np.float32)
    gradient = jax.jit(jax.grad(lambda x: linear(x, weight).sum()))(x)
    columns = jax.jit(linear)(np.eye(256, dtype=np.float32), replace(weight, bias=None)).sum(axis=1)
    assert np.allclose(gradient[0], columns, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("width", "options", "wanted"),
    [
        (192, {}, "linear: 192 in features, not a multiple of 128"),
        (128, {}, "linear: 128 in features, but the weight has 256"),
        (256, {"implementation": "cuda"}, "no implementation 'cuda'"),
        (256, {"operand_dtype": "bfloat16"}, "no operand dtype 'bfloat16'"),
        (256, {"interpret": True}, "interpret"),
    ],
)
def test_bad_calls_are_refused(width, options, wanted):
    with pytest.raises(ValueError, match=wanted):
        linear(jnp.zeros((1, width)), weight_of(), **options)


def test_weights_that_do_not_fit_the_call_are_refused():
    x = jnp.zeros((1, 256))
    with pytest.raises(ValueError, match="one layer"):
        linear(x, jax.tree.map(lambda leaf: leaf[None], weight_of()))
    with pytest.raises(ValueError, match="no trellis"):
        linear(x, decoded(weight_of()), implementation="pallas", interpret=True)
    with pytest.raises(ValueError, match="exact mode"):
        linear(x, decoded(weight_of(), np.float32), operand_dtype="float16")
