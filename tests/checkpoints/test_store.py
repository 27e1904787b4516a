"""A store believes headers, not the index, and every read either returns the stored bits or names what is wrong."""

import gc
import hashlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from checkpoints import CheckpointError, open_store
from checkpoints.store import ALIGNMENT

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def tensor(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-100, 100, shape).astype(np.int16)


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two shards with an index, one side file, one file that does not count, and a config."""
    save_file({"a": tensor(0, 5, 3), "b": tensor(1, 4)}, tmp_path / SHARDS[0])
    save_file({"c": tensor(2, 2, 2)}, tmp_path / SHARDS[1], metadata={"format": "pt"})
    save_file({"table": tensor(3, 9, 2)}, tmp_path / "ngram_embedding.safetensors", metadata={"K": "6"})
    save_file({"a": tensor(4, 1)}, tmp_path / "consolidated.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "qwen4_exp"}')
    write_index(tmp_path, {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1]})
    return tmp_path


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_store(path)
    for part in parts:
        assert part in str(caught.value)


def test_folder_with_index_lists_shards_and_side_files(folder):
    with open_store(folder) as store:
        assert store.names() == ("a", "b", "c", "table")
        assert len(store) == 4 and "c" in store and "d" not in store
        assert [file.name for file in store.files] == [*SHARDS, "ngram_embedding.safetensors"]
        assert store.ignored == ("consolidated.safetensors",)
        assert store.unindexed == ()
        assert store.config == {"model_type": "qwen4_exp"}
        assert store.info("table").shape == (9, 2) and store.info("table").dtype == "I16"
        assert store.metadata("ngram_embedding.safetensors") == {"K": "6"}
        assert store.metadata(SHARDS[1]) == {"format": "pt"}


@pytest.mark.parametrize("name", ["ngram_embedding-2.safetensors", "mtp_patch.safetensors", "vision_k6.safetensors"])
def test_side_files_count_although_no_index_names_them(folder, name):
    save_file({"side": tensor(5, 3)}, folder / name)
    with open_store(folder) as store:
        np.testing.assert_array_equal(store.read("side"), tensor(5, 3))
        assert store.unindexed == ()


def test_tensors_that_the_index_omits_are_read_and_reported(folder):
    write_index(folder, {"a": SHARDS[0], "c": SHARDS[1]})
    with open_store(folder) as store:
        assert store.unindexed == ("b",)
        np.testing.assert_array_equal(store.read("b"), tensor(1, 4))


def test_tensor_that_the_index_places_in_the_wrong_shard_is_read_from_the_right_one(folder):
    write_index(folder, {"a": SHARDS[1], "b": SHARDS[0], "c": SHARDS[1]})
    with open_store(folder) as store:
        np.testing.assert_array_equal(store.read("a"), tensor(0, 5, 3))


def test_tensor_that_only_the_index_knows_is_refused(folder):
    write_index(folder, {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1], "ghost": SHARDS[1]})
    refused(folder, "ghost", SHARDS[1])


def test_missing_shard_is_refused_by_name(folder):
    (folder / SHARDS[1]).unlink()
    refused(folder, SHARDS[1], "missing")


def test_missing_numbered_shard_is_refused_without_an_index(folder):
    (folder / "model.safetensors.index.json").unlink()
    with open_store(folder) as store:
        assert store.names() == ("a", "b", "c", "table") and store.unindexed == ()
    (folder / SHARDS[0]).unlink()
    refused(folder, SHARDS[0], "missing")


def test_name_in_two_files_is_refused(folder):
    save_file({"b": tensor(6, 4)}, folder / "mtp_patch.safetensors")
    refused(folder, "b", SHARDS[0], "mtp_patch.safetensors")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ("{}", "weight_map"),
        ('{"weight_map": {}}', "weight_map"),
        ('{"weight_map": {"a": 3}}', "a: 3 is not the name"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "a: '../model.safetensors' is not the name"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "'a' comes twice"),
    ],
)
def test_malformed_index_is_refused(folder, text, fault):
    (folder / "model.safetensors.index.json").write_text(text)
    refused(folder, "model.safetensors.index.json", fault)


def test_malformed_config_is_refused(folder):
    (folder / "config.json").write_text('{"model_type": ')
    refused(folder, "config.json")


def test_folder_without_weights_and_absent_path_are_refused(tmp_path):
    refused(tmp_path, "model*.safetensors")
    refused(tmp_path / "absent", "absent")


def test_shard_cut_by_one_byte_is_refused_when_the_store_opens(folder):
    path = folder / SHARDS[1]
    path.write_bytes(path.read_bytes()[:-1])
    refused(folder, SHARDS[1], "c", "truncated")


def test_single_file_stands_alone(folder):
    with open_store(folder / SHARDS[1]) as store:
        assert store.names() == ("c",) and store.config is None and store.ignored == ()


def test_read_returns_every_stored_bit_of_the_golden_models(golden):
    for case in ("base", "official_names"):
        expected = load_file(golden / case / "model.safetensors")
        with open_store(golden / case) as store:
            assert set(store.names()) == set(expected)
            for name, array in expected.items():
                read = store.read(name)
                assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_bfloat16_scalars_and_empty_tensors_keep_dtype_and_shape(tmp_path):
    path = tmp_path / "x.safetensors"
    arrays = {
        "half": np.array([1.5, -2.0], ml_dtypes.bfloat16),
        "scalar": np.array(-5, np.int32),
        "empty": np.zeros((0, 3), np.float32),
        "thin": np.zeros((3, 0), np.float32),
    }
    save_file(arrays, path)
    with open_store(path) as store:
        for name, array in arrays.items():
            read = store.read(name)
            assert (read.dtype, read.shape) == (array.dtype, array.shape)
            assert read.tobytes() == array.tobytes()
        assert store.read_slice("empty", 0, 0).shape == (0, 3)
        assert store.read_slice("thin", 1, 3).shape == (2, 0)
        assert store.read_rows("thin", np.array([2, 0, 2])).shape == (3, 0)


def test_data_read_is_aligned_and_writable(folder):
    with open_store(folder) as store:
        for array in (store.read("a"), store.read_slice("a", 1, 4)):
            assert array.ctypes.data % ALIGNMENT == 0 and array.flags.writeable and array.flags.c_contiguous


def test_two_reads_share_no_memory(folder):
    with open_store(folder) as store:
        first, second = store.read("a"), store.read("a")
        assert not np.shares_memory(first, second)
        first[:] = 0
        np.testing.assert_array_equal(second, tensor(0, 5, 3))


def test_slices_are_parts_of_the_whole(folder):
    with open_store(folder) as store:
        for start, stop in ((0, 5), (0, 0), (5, 5), (1, 2), (2, 5)):
            np.testing.assert_array_equal(store.read_slice("a", start, stop), tensor(0, 5, 3)[start:stop])
        for start, stop in ((-1, 2), (0, 6), (3, 2)):
            with pytest.raises(IndexError, match="a"):
                store.read_slice("a", start, stop)


@pytest.mark.parametrize("rows", [[0], [4, 3, 2, 1, 0], [1, 2, 3], [3, 3, 0, 3], [0, 2, 4], []])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint64])
def test_rows_come_in_the_order_asked_for(folder, rows, dtype):
    with open_store(folder) as store:
        np.testing.assert_array_equal(store.read_rows("a", np.array(rows, dtype)), tensor(0, 5, 3)[rows])


@pytest.mark.parametrize("rows", [[-1], [5], [0, 99]])
def test_rows_out_of_range_are_refused_by_name(folder, rows):
    with open_store(folder) as store, pytest.raises(IndexError, match=r"a: rows .* 5 entries"):
        store.read_rows("a", np.array(rows))


def test_rows_must_be_integers(folder):
    with open_store(folder) as store:
        for rows in (np.array([0.0]), np.array([[0]]), np.array([True])):
            with pytest.raises(IndexError, match="integers"):
                store.read_rows("a", rows)


def test_neighbouring_rows_are_read_together(folder, monkeypatch):
    calls: list[int] = []
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: calls.append(args[2]) or preadv(*args))
    with open_store(folder) as store:
        store.read_rows("table", np.array([7, 1, 2, 6, 1, 0]))
        assert len(calls) == 2


def test_short_reads_are_continued_where_they_ended(folder, monkeypatch):
    preadv, asked = os.preadv, []

    def short(descriptor: int, buffers: list[memoryview], at: int) -> int:
        asked.append((len(buffers[0]), at))
        return preadv(descriptor, [buffers[0][:12]], at)

    monkeypatch.setattr(os, "preadv", short)
    with open_store(folder) as store:
        start = store.info("a").start
        np.testing.assert_array_equal(store.read("a"), tensor(0, 5, 3))
        assert asked == [(30, start), (18, start + 12), (6, start + 24)]


def test_read_that_ends_early_names_the_tensor(folder, monkeypatch):
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: 0)
    with open_store(folder) as store, pytest.raises(CheckpointError, match="a: the file ended 30 bytes early"):
        store.read("a")


def test_file_that_changes_size_after_opening_is_refused(folder):
    path = folder / SHARDS[0]
    with open_store(folder) as store:
        store.read("a")
        os.truncate(path, path.stat().st_size - 1)
        for read in (
            lambda: store.read("a"),
            lambda: store.read_slice("a", 0, 1),
            lambda: store.read_rows("a", np.array([0])),
        ):
            with pytest.raises(CheckpointError, match=f"{SHARDS[0]}: a: the file changed"):
                read()
        np.testing.assert_array_equal(store.read("c"), tensor(2, 2, 2))


def test_file_that_vanishes_before_its_first_read_is_refused(folder):
    with open_store(folder) as store:
        (folder / SHARDS[1]).unlink()
        with pytest.raises(CheckpointError, match=f"{SHARDS[1]}: c: cannot open"):
            store.read("c")


def test_unknown_names_are_refused(folder):
    with open_store(folder) as store:
        for ask in (store.info, store.read):
            with pytest.raises(CheckpointError, match="nothing.here: no such tensor"):
                ask("nothing.here")
        with pytest.raises(CheckpointError, match=r"consolidated\.safetensors"):
            store.metadata("consolidated.safetensors")


def test_closing_gives_back_descriptors_and_ends_reads(folder):
    before = len(os.listdir("/proc/self/fd"))
    store = open_store(folder)
    assert len(os.listdir("/proc/self/fd")) == before
    store.read("a")
    store.read("c")
    assert len(os.listdir("/proc/self/fd")) == before + 2
    store.close()
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ValueError, match="closed"):
        store.read("a")


def test_a_store_that_nobody_holds_gives_back_descriptors(folder):
    before = len(os.listdir("/proc/self/fd"))
    store = open_store(folder)
    store.read("a")
    del store
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_threads_read_what_one_thread_reads(folder):
    with open_store(folder) as store, ThreadPoolExecutor(8) as pool:
        for name, array in pool.map(lambda i: ("ab"[i % 2], store.read("ab"[i % 2])), range(200)):
            np.testing.assert_array_equal(array, tensor(0, 5, 3) if name == "a" else tensor(1, 4))


def test_digest_depends_on_names_sizes_and_headers_alone(folder, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    digest = open_store(folder).digest()
    os.utime(copy / SHARDS[0], (1, 1))
    (copy / "config.json").write_text("{}")
    save_file({"a": tensor(7, 5, 3), "b": tensor(1, 4)}, copy / SHARDS[0])  # other data, same header
    assert open_store(copy).digest() == digest
    save_file({"a2": tensor(0, 5, 3), "b": tensor(1, 4)}, copy / SHARDS[0])
    write_index(copy, {"a2": SHARDS[0], "c": SHARDS[1]})
    assert open_store(copy).digest() != digest


def test_digest_is_what_its_description_says(folder):
    total = hashlib.sha256()
    for name in sorted([*SHARDS, "ngram_embedding.safetensors"]):
        blob = (folder / name).read_bytes()
        header = blob[8 : 8 + int.from_bytes(blob[:8], "little")]
        total.update(f"{name}\t{len(blob)}\t{hashlib.sha256(header).hexdigest()}\n".encode())
    assert open_store(folder).digest() == total.hexdigest()


def test_reading_checkpoints_needs_no_jax():
    modules = "checkpoints, checkpoints.exl3, checkpoints.ngram, checkpoints.naming, checkpoints.write"
    program = f"import sys, {modules}; sys.exit('jax' in sys.modules or 'pallas_kernels' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, check=False).returncode == 0
