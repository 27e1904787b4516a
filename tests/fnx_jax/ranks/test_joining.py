"""Who is let in: ranks of the same group with the same facts, and nobody else."""

import socket
from dataclasses import replace

import pytest

from fnx_jax.ranks.errors import Disagreement, RankLost, Stranger
from fnx_jax.ranks.follower import join
from fnx_jax.ranks.leader import Leader
from tests.fnx_jax.ranks.support import FACTS, Losses, Thread, group, pair


def refused(zero, one, facts, kind) -> tuple[str, str]:
    """Both messages of a start that both ranks refuse."""
    leading = Thread(lambda: Leader(zero, FACTS))
    with pytest.raises(kind) as by_one:
        join(one, facts, Losses())
    with pytest.raises(kind) as by_zero:
        leading.result()
    return str(by_zero.value), str(by_one.value)


def test_the_first_fact_that_differs_is_named_with_both_values_on_both_ranks():
    zero = group()
    both = refused(zero, replace(zero, rank=1), {"lanes": "8", "context": "64"}, Disagreement)
    assert set(both) == {"lanes: 4 on rank 0, 8 on rank 1"}


def test_a_fact_that_one_rank_lacks_is_a_difference():
    zero = group()
    both = refused(zero, replace(zero, rank=1), {"lanes": "4"}, Disagreement)
    assert set(both) == {"context: 512 on rank 0, nothing on rank 1"}


def test_another_number_of_ranks_is_refused():
    zero = group()
    by_zero, by_one = refused(zero, replace(zero, ranks=4, rank=1), FACTS, Disagreement)
    assert by_zero == "ranks: 2 on rank 0, 4 on rank 1" and by_one == "ranks: 4 on rank 1, 2 on rank 0"


def test_another_token_is_refused_and_the_right_one_still_let_in():
    zero = group(token=b"right")
    leading = Thread(lambda: Leader(zero, FACTS))
    with pytest.raises(Stranger, match="another token"):
        join(replace(zero, rank=1, token=b"wrong"), FACTS, Losses())
    link = join(replace(zero, rank=1), FACTS, Losses())
    leading.result().end()
    link.close()


@pytest.mark.parametrize("says", [b"GET / HTTP/1.1\r\nHost: localhost:4000\r\nAccept: */*\r\n\r\n", b"", None])
def test_a_stray_connection_is_refused_and_ranks_still_let_in(says):
    zero = group()
    leading = Thread(lambda: Leader(zero, FACTS))
    stray = _connected(zero)
    if says is None:  # echoes what it hears
        stray.sendall(stray.recv(1000))
    else:
        stray.sendall(says)
    link = join(replace(zero, rank=1), FACTS, Losses())
    leading.result().end()
    link.close()
    stray.settimeout(5)
    try:
        while stray.recv(1000):
            pass
    except ConnectionResetError:
        pass
    stray.close()


def _connected(zero) -> socket.socket:
    while True:
        try:
            return socket.create_connection((zero.host, zero.port))
        except ConnectionRefusedError:
            pass


def test_a_second_process_with_one_rank_is_refused():
    zero = group(ranks=4)
    leading = Thread(lambda: Leader(replace(zero, join_s=1.0), FACTS))
    first = join(replace(zero, rank=1), FACTS, Losses())
    with pytest.raises(RankLost, match="closed"):
        join(replace(zero, rank=1), FACTS, Losses())
    with pytest.raises(RankLost, match=r"ranks \[2, 3\] did not come within 1 s"):
        leading.result()
    first.close()


def test_a_rank_waits_for_rank_0_only_so_long():
    with pytest.raises(RankLost, match="rank 0 did not come to 127.0.0.1"):
        join(group(rank=1, join_s=0.3), FACTS, Losses())


def test_several_followers_are_let_in():
    zero = group(ranks=4)
    others = [Thread(lambda rank=rank: join(replace(zero, rank=rank), FACTS, Losses())) for rank in (3, 1, 2)]
    leader = Leader(zero, FACTS)
    links = [other.result() for other in others]
    ending = Thread(leader.end)
    for link in links:
        assert type(link.receive(5)).__name__ == "End"
        link.close()
    ending.result()
    assert leader.lost is None


def test_nobody_is_let_in_later():
    zero = group()
    leader, link, *_ = pair(zero)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((zero.host, zero.port))
    leader.end()
    link.close()
