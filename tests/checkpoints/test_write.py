"""A written file is legal, aligned where the format allows it, and whole or absent."""

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from checkpoints import open_store
from checkpoints.headers import DTYPES, read_header
from checkpoints.store import ALIGNMENT
from checkpoints.write import write_safetensors


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "odd": rng.integers(0, 9, 7).astype(np.uint8),
        "scalar": np.array(-3, np.int32),
        "lines": rng.standard_normal((4, 32)).astype(np.float32),
        "half": rng.standard_normal(64).astype(ml_dtypes.bfloat16),
        "pair": rng.integers(0, 9, 3).astype(np.int16),
        "empty": np.zeros((0, 5), np.float16),
        "wide": rng.standard_normal(5),
        "flipped": np.arange(32, dtype=np.int16).reshape(4, 8).T,
        "ünï code": np.array([True, False]),
    }


def test_safetensors_package_reads_every_bit_back(tmp_path):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, arrays(), {"format": "np", "quote": 'a"b\n'})
    loaded = load_file(path)
    assert set(loaded) == set(arrays())
    for name, array in arrays().items():
        assert (loaded[name].dtype, loaded[name].shape) == (array.dtype, array.shape)
        assert loaded[name].tobytes() == array.tobytes()
    with safe_open(path, "np") as file:
        assert file.metadata() == {"format": "np", "quote": 'a"b\n'}


def test_store_reads_every_bit_back(tmp_path):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, arrays())
    with open_store(path) as store:
        for name, array in arrays().items():
            assert store.read(name).dtype == array.dtype
            assert store.read(name).tobytes() == array.tobytes()


@pytest.mark.parametrize("metadata", [{}, {"k": "v"}, {"key": "v" * 50}, {"another": "v" * 61}])
def test_data_starts_aligned_whatever_the_header(tmp_path, metadata):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {"w": np.zeros(16, np.float32)}, metadata)
    infos, _ = read_header(path)
    assert infos["w"].start % ALIGNMENT == 0


def test_tensors_of_whole_lines_are_aligned_and_the_others_to_their_elements(tmp_path):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, arrays())
    infos, _ = read_header(path)
    whole = {name for name, array in arrays().items() if array.nbytes % ALIGNMENT == 0}
    assert {"lines", "half", "flipped"} <= whole
    for name, info in infos.items():
        assert info.start % (ALIGNMENT if name in whole else DTYPES[info.dtype].itemsize) == 0


def test_every_dtype_of_the_format_can_be_written(tmp_path):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {code: np.zeros(3, dtype) for code, dtype in DTYPES.items()})
    assert {name: info.dtype for name, info in read_header(path)[0].items()} == {code: code for code in DTYPES}


def test_file_without_tensors_is_legal(tmp_path):
    write_safetensors(tmp_path / "x.safetensors", {})
    assert load_file(tmp_path / "x.safetensors") == {}


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"w": np.array(["text"])}, None, "w: no safetensors dtype"),
        ({"w": np.zeros(2, ">f4")}, None, "w: no safetensors dtype"),
        ({"__metadata__": np.zeros(2, np.int8)}, None, "__metadata__"),
        ({}, {"rows": 5}, "strings"),
    ],
)
def test_what_the_format_lacks_is_refused_before_a_file_is_made(tmp_path, tensors, metadata, message):
    with pytest.raises(ValueError, match=message):
        write_safetensors(tmp_path / "x.safetensors", tensors, metadata)
    assert list(tmp_path.iterdir()) == []


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch):
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {"w": np.zeros(4, np.int8)})
    before = path.read_bytes()

    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        write_safetensors(path, {"w": np.ones(4, np.int8)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_partial_writes_are_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
    path = tmp_path / "x.safetensors"
    write_safetensors(path, {"w": np.arange(32, dtype=np.int16)})
    np.testing.assert_array_equal(load_file(path)["w"], np.arange(32))


def test_finished_file_is_as_readable_as_any_other(tmp_path):
    write_safetensors(tmp_path / "x.safetensors", {})
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "x.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
