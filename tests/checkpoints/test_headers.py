"""A header that does not describe its file exactly is refused, and the error names file and tensor."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from checkpoints.errors import CheckpointError
from checkpoints.headers import DTYPES, MAX_HEADER_BYTES, read_header


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def write_raw(path: Path, header: dict | bytes, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    for part in (str(path), *parts):
        assert part in str(caught.value)


def test_header_of_a_library_file_is_read_whole(tmp_path):
    path = tmp_path / "a.safetensors"
    arrays = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "flag": np.array([True, False]),
        "scalar": np.array(7, np.int64),
        "empty": np.zeros((0, 4), np.float16),
    }
    save_file(arrays, path, metadata={"format": "pt"})
    infos, metadata = read_header(path)
    assert metadata == {"format": "pt"}
    assert {name: (info.dtype, info.shape, info.nbytes) for name, info in infos.items()} == {
        "w": ("F32", (2, 3), 24),
        "flag": ("BOOL", (2,), 2),
        "scalar": ("I64", (), 8),
        "empty": ("F16", (0, 4), 0),
    }
    blob = path.read_bytes()
    for name, array in arrays.items():
        assert blob[infos[name].start : infos[name].start + infos[name].nbytes] == array.tobytes()
        assert infos[name].file == path


def test_every_dtype_has_the_size_the_format_says():
    sizes = {code: dtype.itemsize for code, dtype in DTYPES.items()}
    assert [sizes[c] for c in ("F8_E4M3", "BF16", "F16", "I16", "U32", "F32", "I64", "F64", "BOOL")] == [
        1, 2, 2, 2, 4, 4, 8, 8, 1,
    ]  # fmt: skip


def test_file_without_tensors_is_empty(tmp_path):
    assert read_header(write_raw(tmp_path / "a", {})) == ({}, {})


def test_file_cut_by_one_byte_names_the_tensor_cut(tmp_path):
    header = {"first": entry("U8", [4], 0, 4), "last": entry("U8", [4], 4, 8)}
    refused(write_raw(tmp_path / "a", header, bytes(7)), "last", "truncated")
    refused(write_raw(tmp_path / "b", header, bytes(3)), "first", "truncated")


def test_byte_after_the_last_tensor_is_refused(tmp_path):
    refused(write_raw(tmp_path / "a", {"x": entry("U8", [4], 0, 4)}, bytes(5)), "1 bytes after")


@pytest.mark.parametrize(
    ("header", "parts"),
    [
        ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, ("b", "overlaps")),
        ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [1], 5, 6)}, ("b", "gap")),
        ({"a": entry("U8", [4], 2, 6)}, ("a", "gap")),
        ({"a": entry("U8", [3, 2], 0, 6), "b": entry("U8", [6], 0, 6)}, ("b", "overlaps")),
        ({"a": entry("F32", [2], 0, 6)}, ("a", "takes 8 bytes")),
        ({"a": entry("F4", [12], 0, 6)}, ("a", "unknown dtype 'F4'")),
        ({"a": entry("U8", [6], 6, 0)}, ("a", "data_offsets")),
        ({"a": {"dtype": "U8", "shape": [6], "data_offsets": [0]}}, ("a", "data_offsets")),
        ({"a": {"dtype": "U8", "shape": [6]}}, ("a", "data_offsets")),
        ({"a": entry("U8", [-6], 0, 6)}, ("a", "shape")),
        ({"a": {"dtype": "U8", "shape": [6.0], "data_offsets": [0, 6]}}, ("a", "shape")),
        ({"a": {"dtype": "U8", "shape": 6, "data_offsets": [0, 6]}}, ("a", "shape")),
        ({"a": {"dtype": ["U8"], "shape": [6], "data_offsets": [0, 6]}}, ("a", "dtype")),
        ({"a": 5}, ("a", "needs dtype")),
        ({"__metadata__": {"rows": 5}}, ("__metadata__",)),
    ],
)
def test_entry_that_contradicts_the_file_is_refused_by_name(tmp_path, header, parts):
    refused(write_raw(tmp_path / "x", header, bytes(6)), *parts)


def test_name_that_comes_twice_is_refused(tmp_path):
    one = json.dumps(entry("U8", [0], 0, 0))
    refused(write_raw(tmp_path / "x", f'{{"same": {one}, "other": {one}, "same": {one}}}'.encode()), "'same'", "twice")


@pytest.mark.parametrize("raw", [b'{"a": ', b"\xff\xfe{}", b"[" * 100_000, b"[1, 2]", b'"ab"', b"{}x"])
def test_broken_json_is_refused(tmp_path, raw):
    refused(write_raw(tmp_path / "x", raw), "JSON")


@pytest.mark.parametrize("length", [0, 1, 3, MAX_HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_header_length_beyond_file_or_format_is_refused_before_it_is_read(tmp_path, length):
    path = tmp_path / "x"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    refused(path, "header length")


def test_large_header_length_is_refused_even_where_the_file_is_larger(tmp_path):
    path = tmp_path / "x"
    path.write_bytes((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}")
    with open(path, "r+b") as file:
        file.truncate(1 << 40)
    refused(path, "header length")


@pytest.mark.parametrize("content", [b"", b"\x02\0\0\0\0\0\0"])
def test_file_shorter_than_a_length_is_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    refused(tmp_path / "x", "truncated")


def test_missing_file_and_folder_are_refused(tmp_path):
    refused(tmp_path / "absent")
    refused(tmp_path)


def test_sparse_file_of_a_full_size_table_costs_its_header_alone(tmp_path):
    rows, words = 320_001_536, 61
    nbytes = rows * words * 2
    path = write_raw(tmp_path / "x", {"trellis": entry("I16", [rows, words], 0, nbytes)})
    first = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate(first + nbytes)
    infos, _ = read_header(path)
    assert (infos["trellis"].start, infos["trellis"].nbytes) == (first, nbytes)
    with open(path, "r+b") as file:
        file.truncate(first + nbytes - 1)
    refused(path, "trellis", "truncated")


def test_header_of_fifty_thousand_tensors_shares_shapes_and_dtypes(tmp_path):
    count = 50_000
    header = {
        f"model.layers.{i}.mlp.experts.{i}.up_proj.suh": entry("F16", [2], 4 * i, 4 * i + 4) for i in range(count)
    }
    infos, _ = read_header(write_raw(tmp_path / "x", header, bytes(4 * count)))
    assert len(infos) == count
    assert len({id(info.shape) for info in infos.values()}) == 1
    assert len({id(info.dtype) for info in infos.values()}) == 1
    assert not hasattr(next(iter(infos.values())), "__dict__")
