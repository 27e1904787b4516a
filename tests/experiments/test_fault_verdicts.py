"""What a fault run holds against a server."""

import signal

import pytest

from experiments.faults import LIMIT_S, Case, Result, figures, judge

KILLED = Case(signal.SIGKILL, (1,), busy=True)


def seen(**changes) -> Result:
    """What a server that does all right shows."""
    right = dict(codes={"rank 0": 5}, seconds=1.0, replies=["500", "500 in the stream"], health=["200", "503"])
    return Result(KILLED.name, **(right | changes))


@pytest.mark.parametrize("health", [["200", "503", "ConnectionRefusedError"], ["200", "ConnectionRefusedError"], []])
def test_a_server_may_be_gone_before_anybody_asks(health):
    assert judge(KILLED, seen(health=health)) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        (dict(health=["200", "503", "200"]), "200 after 503"),
        (dict(codes={"rank 0": None}), "exit code None"),
        (dict(seconds=LIMIT_S + 1), "until the end"),
        (dict(replies=["200", "done"]), "replies"),
    ],
)
def test_what_does_not_hold_is_named(changes, word):
    (wrong,) = judge(KILLED, seen(**changes))
    assert word in wrong


def test_a_receipt_counts_what_held():
    found = figures([seen(), seen(wrong=["/health said nothing"])])
    assert (found["cases"], found["held"]) == (2, 1)
