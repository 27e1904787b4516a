"""Progress is a bar on a terminal and plain lines elsewhere."""

import io

import pytest

from checkpoints import progress
from checkpoints.progress import byte_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_end_with_the_whole(monkeypatch):
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.0)
    stream = io.StringIO()
    with byte_progress(3 << 30, "reading", stream) as advance:
        for _ in range(3):
            advance(1 << 30)
    lines = stream.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "reading: 1.00 of 3.00 GiB",
        "reading: 2.00 of 3.00 GiB",
        "reading: 3.00 of 3.00 GiB",
        "reading: 3.00 of 3.00 GiB",
    ]


def test_few_lines_are_written_between_times():
    stream = io.StringIO()
    with byte_progress(1000, "reading", stream) as advance:
        for _ in range(1000):
            advance(1)
    assert stream.getvalue().count("\n") == 1


def test_terminal_gets_a_bar():
    pytest.importorskip("tqdm")
    stream = Terminal()
    with byte_progress(2 << 20, "reading", stream) as advance:
        advance(2 << 20)
    assert "reading: 100%" in stream.getvalue()


def test_terminal_without_tqdm_gets_lines(monkeypatch):
    monkeypatch.setattr(progress, "_tqdm", lambda: None)
    stream = Terminal()
    with byte_progress(1 << 30, "reading", stream) as advance:
        advance(1 << 30)
    assert "reading: 1.00 of 1.00 GiB" in stream.getvalue()
