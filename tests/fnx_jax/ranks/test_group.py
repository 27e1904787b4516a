"""Which rank a process is, from text."""

import pytest

from fnx_jax.ranks.group import Group, parse_address, spell_address


@pytest.mark.parametrize(
    ("text", "address"),
    [("node0:4000", ("node0", 4000)), ("[::1]:4000", ("::1", 4000)), ("10.0.0.1:1", ("10.0.0.1", 1))],
)
def test_an_address_is_read_and_spelled(text, address):
    assert parse_address(text) == address
    assert spell_address(*address) == text


@pytest.mark.parametrize("text", ["", "node0", ":4000", "node0:", "node0:0", "node0:65536", "node0:http", "::1:4000"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="HOST:PORT was wanted"):
        parse_address(text)


@pytest.mark.parametrize(("ranks", "rank", "word"), [(1, 0, "ranks=1"), (2, 2, "rank=2"), (2, -1, "rank=-1")])
def test_a_rank_outside_its_group_is_refused(ranks, rank, word):
    with pytest.raises(ValueError, match=word):
        Group("localhost", 4000, ranks, rank)


def test_the_token_is_not_shown():
    assert "secret" not in repr(Group("localhost", 4000, 2, 0, token=b"secret"))
