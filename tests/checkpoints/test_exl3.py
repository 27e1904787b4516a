"""EXL3 layers are read as stored, and anything the format does not allow is refused by tensor name."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoints import CheckpointError, open_store
from checkpoints.exl3 import check_quantization, is_linear, linear_info, read_linear, read_linear_arrays

MUL1 = np.array(0x83DCD12D, np.uint32).view(np.int32)
MCG = np.array(0xCBAC1FED, np.uint32).view(np.int32)


def layer(words: int = 64, changes: dict[str, np.ndarray | None] | None = None) -> dict[str, np.ndarray]:
    """A legal mul1 layer of 128 inputs and 256 outputs; a change to None takes the tensor away."""
    rng = np.random.default_rng(0)
    parts: dict[str, np.ndarray | None] = {
        "trellis": rng.integers(-(2**15), 2**15, (8, 16, words)).astype(np.int16),
        "suh": rng.standard_normal(128).astype(np.float16),
        "svh": rng.standard_normal(256).astype(np.float16),
        "mul1": MUL1,
    }
    return {f"m.proj.{name}": array for name, array in (parts | (changes or {})).items() if array is not None}


def stored(tmp_path, tensors, config=None):
    save_file(tensors, tmp_path / "model.safetensors")
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    return open_store(tmp_path)


def refused(store, *parts: str) -> None:
    for read in (linear_info, read_linear_arrays, read_linear):
        with pytest.raises(CheckpointError) as caught:
            read(store, "m.proj")
        for part in parts:
            assert part in str(caught.value)


@pytest.mark.parametrize("case", ["linear", "moe"])
def test_golden_layers_are_read_bit_for_bit(golden, case):
    path = golden / "exl3" / f"{case}.safetensors"
    tensors = load_file(path)
    prefixes = {name.removesuffix(".trellis") for name in tensors if name.endswith(".trellis")}
    assert len(prefixes) == {"linear": 12, "moe": 48}[case]
    with open_store(path) as store:
        for prefix in prefixes:
            parts = {n.removeprefix(prefix + "."): t for n, t in tensors.items() if n.startswith(prefix + ".")}
            info, arrays = linear_info(store, prefix), read_linear_arrays(store, prefix)
            assert is_linear(store, prefix)
            assert arrays.keys() == parts.keys()
            assert all(arrays[part].tobytes() == parts[part].tobytes() for part in parts)
            rows, columns, words = parts["trellis"].shape
            assert (info.in_features, info.out_features, info.bits) == (16 * rows, 16 * columns, words / 16)
            assert info.codebook == next((c for c in ("mcg", "mul1") if c in parts), "3inst")
            assert info.has_bias == ("bias" in parts) and info.trellis_shape == (rows, columns, words)


def test_layer_becomes_the_type_that_kernels_take(golden):
    from pallas_kernels.exl3.weight import Exl3Weight

    with open_store(golden / "exl3" / "linear.safetensors") as store:
        weight = read_linear(store, "mul1_2p5")
        assert isinstance(weight, Exl3Weight)
        assert (weight.in_features, weight.out_features, weight.bits, weight.codebook) == (640, 256, 2.5, "mul1")
        np.testing.assert_array_equal(weight.suh, store.read("mul1_2p5.suh"))
        assert read_linear(store, "old_signs_3inst_2").codebook == "3inst"


@pytest.mark.parametrize(
    ("words", "bits"),
    [(16, 1), (24, 1.5), (32, 2), (40, 2.5), (48, 3), (56, 3.5), (64, 4), (80, 5), (96, 6), (112, 7), (128, 8)],
)
def test_width_is_the_last_axis_over_sixteen(tmp_path, words, bits):
    assert linear_info(stored(tmp_path, layer(words)), "m.proj").bits == bits


@pytest.mark.parametrize("words", [0, 8, 15, 17, 65, 72, 88, 104, 120, 144])
def test_widths_that_the_format_lacks_are_refused(tmp_path, words):
    refused(stored(tmp_path, layer(words)), "m.proj.trellis", "no width")


@pytest.mark.parametrize("words", [24, 40, 56])
@pytest.mark.parametrize("marker", [{"mul1": None}, {"mul1": None, "mcg": MCG}])
def test_half_widths_are_refused_without_mul1(tmp_path, words, marker):
    refused(stored(tmp_path, layer(words, marker)), "m.proj.trellis", "half widths")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"mcg": MCG}, ("m.proj", "both markers")),
        ({"mul1": np.array(MUL1 + 1, np.int32)}, ("m.proj.mul1", "0x83DCD12E")),
        ({"mul1": MCG}, ("m.proj.mul1", "0xCBAC1FED")),
        ({"mul1": np.array([MUL1], np.int32)}, ("m.proj.mul1", "I32 []")),
        ({"mul1": np.array(5, np.int64)}, ("m.proj.mul1", "I32 []")),
        ({"scale": np.zeros(1, np.float32)}, ("m.proj.scale", "pre-release")),
        ({"weight": np.zeros((256, 128), np.float16)}, ("m.proj.weight", "plain weight")),
        ({"trellis": None}, ("m.proj.trellis", "missing")),
        ({"suh": None}, ("m.proj.suh", "missing")),
        ({"svh": None}, ("m.proj.svh", "missing")),
        ({"su": np.zeros(8, np.int16)}, ("m.proj.su ", "m.proj.suh")),
        ({"sv": np.zeros(16, np.int16)}, ("m.proj.sv ", "m.proj.svh")),
        ({"suh": None, "su": np.zeros(16, np.int16)}, ("m.proj.su ", "I16 [8]")),
        ({"suh": np.zeros(256, np.float16)}, ("m.proj.suh", "F16 [128]")),
        ({"svh": np.zeros(128, np.float16)}, ("m.proj.svh", "F16 [256]")),
        ({"suh": np.zeros(128, np.float32)}, ("m.proj.suh", "F16 [128]")),
        ({"bias": np.zeros(128, np.float16)}, ("m.proj.bias", "[256]")),
        ({"bias": np.zeros(256, np.int16)}, ("m.proj.bias", "F16 or F32")),
        ({"trellis": np.zeros((8, 16, 64), np.int32)}, ("m.proj.trellis", "I16")),
        ({"trellis": np.zeros((8, 16, 2, 64), np.int16)}, ("m.proj.trellis", "I16")),
        ({"trellis": np.zeros((7, 16, 64), np.int16)}, ("m.proj.trellis", "112 inputs")),
        ({"trellis": np.zeros((8, 12, 64), np.int16)}, ("m.proj.trellis", "192 outputs")),
        ({"trellis": np.zeros((0, 16, 64), np.int16)}, ("m.proj.trellis", "0 inputs")),
    ],
)
def test_layer_against_the_format_is_refused_by_tensor_name(tmp_path, changes, parts):
    refused(stored(tmp_path, layer(changes=changes)), *parts)


@pytest.mark.parametrize(
    ("part", "array"),
    [
        ("suh", np.full(128, np.nan, np.float16)),
        ("svh", np.full(256, np.inf, np.float16)),
        ("bias", np.full(256, 65505, np.float32)),
        ("bias", np.full(256, -np.inf, np.float16)),
    ],
)
def test_scales_and_biases_that_are_not_finite_halves_are_refused(tmp_path, part, array):
    store = stored(tmp_path, layer(changes={part: array}))
    with pytest.raises(CheckpointError, match=f"m.proj.{part}.*finite"):
        read_linear_arrays(store, "m.proj")


def test_packed_signs_and_scales_may_mix_in_one_layer(tmp_path):
    changes = {"suh": None, "su": np.arange(8, dtype=np.int16), "bias": np.full(256, 65504, np.float32)}
    store = stored(tmp_path, layer(changes=changes))
    arrays = read_linear_arrays(store, "m.proj")
    assert arrays.keys() == {"trellis", "su", "svh", "mul1", "bias"}
    bias = read_linear(store, "m.proj").bias
    assert bias is not None and bias[0] == np.float16(65504)


def test_layer_that_lost_a_part_still_counts_as_one(tmp_path):
    for part in ("trellis", "suh", "svh", "mul1"):
        assert is_linear(stored(tmp_path, layer(changes={part: None})), "m.proj")


def test_plain_weights_and_tables_are_not_layers(tmp_path):
    tensors = {"plain.weight": np.zeros((2, 2), np.float16), "table.trellis": np.zeros((5, 61), np.int16)}
    store = stored(tmp_path, tensors)
    assert not any(is_linear(store, prefix) for prefix in ("plain", "table", "absent", "plai"))


def test_marker_that_the_config_promises_must_be_there(tmp_path):
    config = {"quantization_config": {"quant_method": "exl3", "codebook": "mul1"}}
    assert linear_info(stored(tmp_path, layer(), config), "m.proj").codebook == "mul1"
    refused(stored(tmp_path, layer(changes={"mul1": None}), config), "m.proj.mul1", "missing")
    config["quantization_config"]["codebook"] = "3inst"
    assert linear_info(stored(tmp_path, layer(changes={"mul1": None}), config), "m.proj").codebook == "3inst"


def test_width_comes_from_the_tensor_and_not_from_the_config(tmp_path):
    config = {"quantization_config": {"quant_method": "exl3", "codebook": "mul1", "bits": 4.05}}
    assert linear_info(stored(tmp_path, layer(40), config), "m.proj").bits == 2.5


@pytest.mark.parametrize(
    "nest", [lambda q: {"quantization_config": q}, lambda q: {"text_config": {"quantization_config": q}}]
)
@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "fp8"}, "'fp8'"),
        ({"quant_method": "EXL3"}, "'EXL3'"),
        ({}, "quant_method None"),
        ({"quant_method": "exl3", "codebook": "sqg_e4m3"}, "'sqg_e4m3'"),
        ({"quant_method": "exl3", "codebook": "sqg_fp16"}, "'sqg_fp16'"),
        ({"quant_method": "exl3", "codebook": "mul1_e4m3"}, "'mul1_e4m3'"),
        ("exl3", "object"),
    ],
)
def test_other_quantizations_are_refused_before_any_tensor(tmp_path, nest, quantization, message):
    with pytest.raises(CheckpointError, match=message):
        check_quantization(nest(quantization))
    refused(stored(tmp_path, layer(), nest(quantization)), "config.json")


def test_plain_and_exl3_configs_pass(tmp_path):
    assert check_quantization(None) is None
    assert check_quantization({"model_type": "qwen4_exp"}) is None
    known = {"quant_method": "exl3", "bits": 4.05}
    assert check_quantization({"quantization_config": known}) == known


def test_bfloat16_scales_are_refused(tmp_path):
    refused(stored(tmp_path, layer(changes={"suh": np.ones(128, ml_dtypes.bfloat16)})), "m.proj.suh", "F16")
