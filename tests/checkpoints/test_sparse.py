"""Sparse files read back as what was outlined: values where there are some, zeros elsewhere."""

import numpy as np
import pytest

from checkpoints import open_store
from checkpoints.sparse import Outline, write_sparse


def test_values_and_holes_in_any_order_read_back(tmp_path):
    outlines = [
        Outline("a.hole", "F16", (3, 5)),
        Outline("b.values", "F16", (2,), np.array([1.5, -2], np.float32)),
        Outline("c.hole", "I64", (4,)),
        Outline("d.values", "I64", (2,), np.array([7, 8])),
        Outline("e.scalar", "I32", (), np.array(0x83DCD12D, np.uint32)),
        Outline("f.values", "F16", (1,), np.array([3.0])),
        Outline("g.hole", "F16", (7,)),
        Outline("h.empty", "F16", (0, 4)),
    ]
    write_sparse(tmp_path / "one.safetensors", outlines, {"key": "value"})
    with open_store(tmp_path / "one.safetensors") as store:
        assert store.metadata("one.safetensors") == {"key": "value"}
        assert len(store.names()) == len(outlines)
        for outline in outlines:
            info, read = store.info(outline.name), store.read(outline.name)
            assert (info.dtype, info.shape, info.nbytes) == (outline.dtype, outline.shape, outline.nbytes)
            assert info.start % read.itemsize == 0
            if outline.values is None:
                assert not read.any()
            else:
                assert np.array_equal(read, outline.values.astype(read.dtype))


def test_existing_file_is_left_alone(tmp_path):
    (tmp_path / "one").write_text("kept")
    with pytest.raises(FileExistsError):
        write_sparse(tmp_path / "one", [])
    assert (tmp_path / "one").read_text() == "kept"
