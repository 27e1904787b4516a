"""Who is let in: ranks of the same group with the same facts, and nobody else."""

import contextlib
import socket
import time
from dataclasses import replace

import pytest

from fnx_jax.ranks.errors import Disagreement, RankLost, Stranger
from fnx_jax.ranks.follower import join, service_port
from fnx_jax.ranks.leader import Leader
from tests.fnx_jax.ranks.support import FACTS, Losses, Thread, group, let_in, pair


def refused(zero, one, facts, kind) -> tuple[str, str]:
    """Both messages of a start that both ranks refuse."""
    leading = Thread(lambda: let_in(zero))
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
    leading = Thread(lambda: let_in(zero))
    with pytest.raises(Stranger, match="another token"):
        join(replace(zero, rank=1, token=b"wrong"), FACTS, Losses())
    link = join(replace(zero, rank=1), FACTS, Losses())
    leading.result().end()
    link.close()


@pytest.mark.parametrize("says", [b"GET / HTTP/1.1\r\nHost: localhost:4000\r\nAccept: */*\r\n\r\n", b"", None])
def test_a_stray_connection_is_refused_and_ranks_still_let_in(says):
    zero = group()
    leading = Thread(lambda: let_in(zero))
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


def test_a_second_process_with_one_rank_is_told_so_and_the_right_one_still_let_in():
    zero = group(ranks=4)
    leading = Thread(lambda: let_in(zero))
    links = [join(replace(zero, rank=1), FACTS, Losses())]
    with pytest.raises(Disagreement, match="rank 1 is there already"):
        join(replace(zero, rank=1), FACTS, Losses())
    links += [join(replace(zero, rank=rank), FACTS, Losses()) for rank in (2, 3)]
    leading.result().end()
    for link in links:
        link.close()


def test_ranks_that_stay_away_are_named():
    with pytest.raises(RankLost, match=r"ranks \[1, 2, 3\] did not come within 0.1 s"):
        let_in(group(ranks=4, join_s=0.1))


def test_strangers_do_not_prolong_the_wait():
    zero = group(join_s=0.3)
    leading = Thread(lambda: let_in(zero))
    end_s = time.monotonic() + 20
    while leading.is_alive():
        assert time.monotonic() < end_s, "they hold the door open"
        with contextlib.suppress(OSError), socket.create_connection((zero.host, zero.port), timeout=1) as stray:
            stray.recv(1)
    with pytest.raises(RankLost, match=r"ranks \[1\] did not come"):
        leading.result()


def test_a_stop_while_ranks_are_missing_ends_those_that_are_there():
    zero, lost, told = group(ranks=4), Losses(), Losses()
    leader = Leader(zero, FACTS, lost)
    leading = Thread(leader.let_in)
    link = join(replace(zero, rank=1), FACTS, told)
    leader.end()
    with pytest.raises(RankLost, match="rank 0 has stopped"):
        service_port(link, 5)
    assert link.ended
    with pytest.raises(RankLost, match=r"rank 0 was stopped before ranks \[2, 3\] came"):
        leading.result()
    assert not lost.told and not told.told
    link.close()


def test_a_rank_waits_for_rank_0_only_so_long():
    with pytest.raises(RankLost, match="rank 0 did not come to 127.0.0.1"):
        join(group(rank=1, join_s=0.3), FACTS, Losses())


def test_several_followers_are_let_in():
    zero = group(ranks=4)
    others = [Thread(lambda rank=rank: join(replace(zero, rank=rank), FACTS, Losses())) for rank in (3, 1, 2)]
    leader = let_in(zero)
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


def test_a_port_in_use_is_refused_before_anybody_is_waited_for():
    zero, opened = group(), []
    with socket.create_server((zero.host, zero.port)), pytest.raises(OSError, match="in use"):
        Leader(zero, FACTS).let_in(lambda: opened.append(True))
    assert not opened
