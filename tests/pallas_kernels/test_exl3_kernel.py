"""The Pallas kernel against the reference in interpret mode, and its lowering for CUDA without a device."""

import warnings
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from pallas_kernels.exl3 import Exl3Weight, decode_numpy, linear
from pallas_kernels.exl3.codebook import CODEBOOKS
from pallas_kernels.exl3.hadamard import OperandDtype
from pallas_kernels.exl3.kernel import dot_kernel
from pallas_kernels.exl3.shapes import SHAPES, SMALL_SHAPES
from pallas_kernels.exl3.tile import words_per_run
from pallas_kernels.exl3.trellis import windows
from pallas_kernels.exl3.tuning import DEFAULT, NARROW, Blocks, blocks_for
from pallas_kernels.exl3.weight import HALF_WIDTHS, WIDTHS

COMBINATIONS = [(c, b) for c in CODEBOOKS for b in WIDTHS if c == "mul1" or b not in HALF_WIDTHS]
# What each small shape is multiplied with: enough rows for one tile, for several, and for several programs.
ROWS = {"small_square": 1, "small_wide": 33, "small_tall": 80}


@cache
def weight_of(inputs: int, outputs: int, bits: float, codebook: str = "mul1", bias: bool = True) -> Exl3Weight:
    rng = np.random.default_rng(8)
    return Exl3Weight(
        rng.integers(0, 2**32, (inputs // 16, outputs // 16, int(8 * bits)), dtype=np.uint32),
        *(rng.standard_normal(n).astype(np.float16) for n in (inputs, outputs)),
        bias=rng.standard_normal(outputs).astype(np.float16) if bias else None,
        codebook=codebook,
    )


def interpreted(x, weight, operand_dtype: OperandDtype = "float16"):
    return linear(x, weight, operand_dtype=operand_dtype, implementation="pallas", interpret=True)


@pytest.mark.parametrize(("codebook", "bits"), COMBINATIONS)
def test_the_dot_kernel_decodes_every_width_and_codebook_exactly(codebook, bits):
    # Rows of the identity make every product exact, so the sums are W_q itself. 128 rows are two programs.
    weight = weight_of(128, 128, bits, codebook)
    dot = jax.jit(lambda x, w: dot_kernel(x, w, Blocks(block_n=32), interpret=True))
    got = np.asarray(dot(np.eye(128, dtype=np.float16), weight))
    assert np.array_equal(got, decode_numpy(weight.words, codebook).astype(np.float32))


@pytest.mark.parametrize("block_n", [16, 128])
@pytest.mark.parametrize("operand_dtype", ["float16", "float32"])
def test_wide_and_narrow_blocks_decode_alike(block_n, operand_dtype):
    weight = weight_of(256, 256, 2.5)
    dot = jax.jit(lambda x, w: dot_kernel(x, w, Blocks(block_n=block_n, sub_tiles=3), interpret=True))
    got = np.asarray(dot(np.eye(256, dtype=operand_dtype)[:70], weight))
    assert np.array_equal(got, decode_numpy(weight.words, "mul1")[:70].astype(np.float32))


@pytest.mark.parametrize("operand_dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", SMALL_SHAPES, ids=lambda shape: shape.name)
def test_the_layer_agrees_with_the_reference(shape, operand_dtype):
    weight = weight_of(shape.in_features, shape.out_features, shape.bits, bias=shape.name != "small_tall")
    x = np.random.default_rng(9).standard_normal((ROWS[shape.name], shape.in_features)).astype(np.float32)
    kernel = np.asarray(jax.jit(lambda x, w: interpreted(x, w, operand_dtype))(x, weight))
    reference = np.asarray(jax.jit(lambda x, w: linear(x, w, operand_dtype=operand_dtype))(x, weight))
    assert kernel.shape == reference.shape and kernel.dtype == reference.dtype
    assert np.linalg.norm(kernel - reference) < 2e-6 * np.linalg.norm(reference)


def test_a_row_of_the_kernel_keeps_its_bits_in_any_company():
    weight = jax.tree.map(jnp.asarray, weight_of(128, 128, 3))
    call = jax.jit(interpreted)
    rng = np.random.default_rng(10)
    x = rng.standard_normal((70, 128)).astype(np.float32)
    whole = np.asarray(call(x, weight))
    for rows in (1, 18):
        taken = rng.permutation(70)[:rows]
        assert np.array_equal(call(x[taken], weight), whole[taken])


def test_no_rows_are_no_rows():
    assert jax.jit(interpreted)(np.zeros((0, 128), np.float32), weight_of(128, 128, 4)).shape == (0, 128)


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_run_of_eight_windows_lies_in_two_or_three_words(bits):
    word, _, skip = windows(int(8 * bits))
    first, last = (word[0::8] * 32 + skip[0::8]), (word[7::8] * 32 + skip[7::8] + 15)
    touched = (last % (256 * bits) - first // 32 * 32) % (256 * bits) // 32 + 1
    assert words_per_run(int(8 * bits)) == int(touched.max())


@pytest.mark.parametrize(
    ("codebook", "bits", "operand_dtype"),
    [
        ("mul1", 1, "float16"),
        ("mul1", 2.5, "float16"),
        ("mul1", 4, "float16"),
        ("mcg", 7, "float16"),
        ("3inst", 8, "float16"),
        ("mul1", 6, "float32"),
    ],
)
@pytest.mark.parametrize("kind", ["NVIDIA A10", "NVIDIA GeForce RTX 4090", "NVIDIA H200", "NVIDIA RTX PRO 6000"])
def test_the_layer_lowers_for_cuda(codebook, bits, operand_dtype, kind):
    weight = jax.eval_shape(lambda: weight_of(2560, 640, bits, codebook))
    device = AbstractDevice(device_kind=kind, num_cores=None, platform="gpu")
    x = jax.ShapeDtypeStruct((40, 2560), jnp.float32)
    call = jax.jit(lambda x, w: linear(x, w, operand_dtype=operand_dtype, implementation="pallas"))
    with use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=device)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
        text = call.trace(x, weight).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") == 3


def test_blocks_of_an_unlisted_layer_are_the_stated_default():
    assert blocks_for(weight_of(128, 128, 4)) == NARROW
    assert blocks_for(Exl3Weight(np.zeros((8, 128, 32), np.uint32), None, None, codebook="mul1")) == DEFAULT


def test_blocks_that_the_kernel_cannot_run_are_refused():
    with pytest.raises(ValueError, match="block_n 48"):
        Blocks(block_n=48)
    with pytest.raises(ValueError, match="sub_tiles 0"):
        Blocks(sub_tiles=0)


def test_named_shapes_are_whole_blocks_with_names_of_their_own():
    assert all(s.in_features % 128 == 0 and s.out_features % 128 == 0 for s in SHAPES + SMALL_SHAPES)
    assert len({s.name for s in SHAPES + SMALL_SHAPES}) == len(SHAPES + SMALL_SHAPES)


@pytest.mark.gpu
@pytest.mark.skipif(jax.default_backend() != "gpu", reason="no GPU")
@pytest.mark.parametrize("shape", SHAPES[:2] + SMALL_SHAPES, ids=lambda shape: shape.name)
def test_the_kernel_on_a_gpu_agrees_with_the_reference_and_keeps_rows(shape):
    weight = jax.tree.map(jnp.asarray, weight_of(shape.in_features, shape.out_features, shape.bits))
    x = np.random.default_rng(11).standard_normal((70, shape.in_features)).astype(np.float32)
    kernel = np.asarray(jax.jit(linear)(x, weight))
    reference = np.asarray(jax.jit(lambda x, w: linear(x, w, implementation="reference"))(x, weight))
    assert np.linalg.norm(kernel - reference) < 1e-5 * np.linalg.norm(reference)
    for rows in (1, 16, 18, 64):
        assert np.array_equal(jax.jit(linear)(x[-rows:], weight), kernel[-rows:])
