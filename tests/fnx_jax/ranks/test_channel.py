"""Silence is what the other side owes: a pause of this process is none of it."""

import time

import pytest

from fnx_jax.ranks.channel import Channel
from fnx_jax.ranks.errors import RankLost


class Connection:
    """A socket that is silent for some looks, each as long as `look_s` says, and then has one byte after the other."""

    def __init__(self, looks: int, look_s: float):
        self._looks, self._look_s = looks, look_s

    def settimeout(self, timeout_s: float) -> None:
        pass

    def setsockopt(self, *option: int) -> None:
        pass

    def recv_into(self, view: memoryview) -> int:
        if self._looks:
            self._looks -= 1
            time.sleep(self._look_s)
            raise TimeoutError
        view[0] = 7
        return 1


def test_one_look_that_took_long_is_no_silence():
    assert Channel(Connection(looks=1, look_s=1.0), silence_s=0.5).read(2) == b"\x07\x07"


def test_many_looks_are():
    with pytest.raises(RankLost, match="no sign of life in time"):
        Channel(Connection(looks=3, look_s=0.0), silence_s=0.5).read(2)
