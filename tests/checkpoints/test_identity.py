"""A folder's identity changes with what is in it."""

import os

from checkpoints.identity import PLACE_BYTES, PLACES, folder_identity


def test_names_sizes_times_and_bytes_count(tmp_path):
    large = tmp_path / "in" / "large"
    large.parent.mkdir()
    large.write_bytes(bytes(2 * PLACES * PLACE_BYTES))
    (tmp_path / "small").write_bytes(b"abc")
    seen = [folder_identity(tmp_path)]
    assert folder_identity(tmp_path) == seen[0]

    def changed(path, content: bytes, shift_ns: int = 0) -> None:
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns + shift_ns
        path.write_bytes(content)
        os.utime(path, ns=times)
        seen.append(folder_identity(tmp_path))

    changed(tmp_path / "small", b"abd")
    changed(large, bytes(2 * PLACES * PLACE_BYTES - 1) + b"x")
    changed(large, bytes(2 * PLACES * PLACE_BYTES - 1))
    changed(large, bytes(2 * PLACES * PLACE_BYTES - 1), shift_ns=1)
    (tmp_path / "small").rename(tmp_path / "other")
    seen.append(folder_identity(tmp_path))
    assert len(set(seen)) == len(seen)
