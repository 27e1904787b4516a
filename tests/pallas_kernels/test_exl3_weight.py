"""A layer is built from a file's arrays, and what the format does not allow is refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from pallas_kernels.exl3 import DecodedWeight, from_arrays, linear
from pallas_kernels.exl3.weight import HALF_WIDTHS, MARKERS, WIDTHS, unpack_signs

MUL1, MCG = (np.array(MARKERS[name], np.uint32).view(np.int32) for name in ("mul1", "mcg"))


def arrays(**changes) -> dict[str, np.ndarray]:
    """A legal layer of 128 inputs and 256 outputs at 4 bits; a change to None takes the tensor away."""
    rng = np.random.default_rng(1)
    parts = {
        "trellis": rng.integers(-(2**15), 2**15, (8, 16, 64)).astype(np.int16),
        "suh": rng.standard_normal(128).astype(np.float16),
        "svh": rng.standard_normal(256).astype(np.float16),
        "mul1": MUL1,
    }
    return {name: array for name, array in (parts | changes).items() if array is not None}


def test_packed_signs_unpack_to_the_golden_vector(golden):
    rotations = load_file(golden / "exl3" / "rotations.safetensors")
    assert np.array_equal(unpack_signs(rotations["signs.packed"]), rotations["signs.unpacked"])


@pytest.mark.parametrize("bits", WIDTHS)
def test_sizes_come_from_the_arrays(bits):
    weight = from_arrays(arrays(trellis=np.zeros((8, 16, int(16 * bits)), np.int16)))
    assert (weight.in_features, weight.out_features, weight.bits) == (128, 256, bits)
    assert weight.words.dtype == np.uint32 and weight.words.shape == (8, 16, int(8 * bits))


def test_the_marker_names_the_codebook():
    assert from_arrays(arrays()).codebook == "mul1"
    assert from_arrays(arrays(mul1=None, mcg=MCG)).codebook == "mcg"
    assert from_arrays(arrays(mul1=None)).codebook == "3inst"


def test_signs_may_replace_either_scale():
    signs = np.full(8, -1, np.int16)
    weight = from_arrays(arrays(suh=None, su=signs))
    assert np.array_equal(weight.suh, np.full(128, -1, np.float16))
    assert np.array_equal(weight.svh, arrays()["svh"])


def test_a_float32_bias_becomes_float16():
    assert from_arrays(arrays(bias=np.ones(256, np.float32))).bias.dtype == np.float16
    assert from_arrays(arrays()).bias is None


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"trellis": None}, "trellis: missing"),
        ({"trellis": np.zeros((8, 16, 64), np.int32)}, "int32"),
        ({"trellis": np.zeros((8, 61), np.int16)}, r"\[8, 61\]"),
        ({"trellis": np.zeros((8, 16, 72), np.int16)}, "4.5 bits"),
        ({"trellis": np.zeros((8, 16, 40), np.int16), "mul1": None}, "mul1 only"),
        ({"trellis": np.zeros((4, 16, 64), np.int16)}, "64 inputs"),
        ({"trellis": np.zeros((8, 0, 64), np.int16)}, "0 outputs"),
        ({"mcg": MCG}, "both markers"),
        ({"mul1": np.array(7, np.int32)}, "0x00000007"),
        ({"mul1": MCG}, "0xCBAC1FED"),
        ({"mul1": np.zeros(2, np.int32)}, "one int32"),
        ({"suh": None}, "neither suh nor su"),
        ({"svh": None}, "neither svh nor sv"),
        ({"su": np.zeros(8, np.int16)}, "both suh and su"),
        ({"suh": np.ones(64, np.float16)}, r"suh: float16 \[64\]"),
        ({"svh": np.ones(256, np.float32)}, "svh: float32"),
        ({"suh": np.full(128, np.nan, np.float16)}, "suh: holds"),
        ({"bias": np.ones(128, np.float16)}, "bias: float16"),
        ({"bias": np.full(256, 1e6, np.float32)}, "bias: holds"),
    ],
)
def test_what_the_format_does_not_allow_is_refused_by_name(changes, wanted):
    with pytest.raises(ValueError, match=wanted) as caught:
        from_arrays(arrays(**changes), "model.layers.3.q_proj")
    assert "model.layers.3.q_proj" in str(caught.value)


@pytest.mark.parametrize("bits", HALF_WIDTHS)
def test_half_widths_need_mul1(bits):
    with pytest.raises(ValueError, match="mul1 only"):
        from_arrays(arrays(trellis=np.zeros((8, 16, int(16 * bits)), np.int16), mul1=None, mcg=MCG))


def test_stacked_layers_are_one_tree_that_operations_index():
    one, two = from_arrays(arrays()), from_arrays(arrays(suh=np.ones(128, np.float16)))
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), one, two)
    assert (stack.in_features, stack.out_features, stack.bits, stack.codebook) == (128, 256, 4, "mul1")
    x = np.random.default_rng(2).standard_normal((3, 128)).astype(np.float32)
    taken = jax.jit(lambda x, stack, e: linear(x, jax.tree.map(lambda leaf: leaf[e], stack)))
    for expert, weight in enumerate((one, two)):
        assert np.array_equal(taken(x, stack, expert), jax.jit(linear)(x, weight))


def test_weights_keep_their_type_and_codebook_through_a_tree_map():
    weight = jax.tree.map(lambda leaf: leaf, from_arrays(arrays(mul1=None)))
    assert weight.codebook == "3inst" and weight.bias is None
    assert len(jax.tree.leaves(DecodedWeight(wq=1, suh=2, svh=3))) == 3
