"""The parts of a soak over HTTP, without a device: equal servers pass, a lying one is caught, no claim goes unseen."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from checkpoints.commands import UsageError
from experiments.http_client import client_for
from experiments.soak import __main__ as command
from experiments.soak.conversations import conversations
from experiments.soak.finding import Finding, show
from experiments.soak.first_token import first_token
from experiments.soak.repeats import repeats
from experiments.soak.servers import Servers, SoakError, both
from tests.fnx_jax.serve.support import TestServer, running


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr("experiments.soak.repeats.PROMPT_TOKENS", 50)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[TestServer, TestServer]]:
    """One that keeps states, and one that does not."""
    with running(lanes=4, slots=32, pages=2000, context=2048) as served, running(lanes=1, context=2048) as plain:
        for server in (served, plain):
            server.script.say(None)
        yield served, plain


def servers(pair, fresh=None) -> Servers:
    """fresh: a server in place of new processes, by default the plain one."""
    served, plain = (client_for(server.url, None) for server in pair)
    return Servers(served, plain, lambda: nullcontext(client_for(fresh.url, None) if fresh else plain))


def run(part: str, both_: Servers) -> Finding:
    if part == "repeats":
        return repeats(both_, 3, 2, 6)
    if part == "conversations":
        return conversations(both_, 2, 4, 6, 2)
    return first_token(both_, [40, 200], 2)


@pytest.mark.parametrize("part", command.PARTS)
def test_equal_servers_have_equal_replies(pair, part):
    finding = run(part, servers(pair))
    assert not finding.wrong and finding.compared in (6, 8, 4)
    said = [line for line in finding.unchecked if "drafts were tested" not in line and "kinds of rows" not in line]
    assert not said
    assert finding.word == ("GREEN" if part == "first_token" else "UNCHECKED"), "no drafts are made here"


@pytest.mark.parametrize("part", command.PARTS)
def test_another_reply_is_red(pair, part):
    served, plain = pair
    try:
        plain.script.say("something else")
        assert run(part, servers(pair)).word == "RED"
    finally:
        plain.script.say(None)


def test_turns_are_held_against_new_servers(pair):
    finding = run("conversations", servers(pair))
    assert finding.figures["turns_by_new_servers"] == 4
    with running(lanes=1, context=2048) as other:
        other.script.say("something else")
        wrong = run("conversations", servers(pair, fresh=other)).wrong
    assert [line.split(":")[0] for line in wrong] == [
        f"conversation {n}, turn {place}" for n in (0, 1) for place in (1, 3)
    ]


@pytest.mark.parametrize("part", ["repeats", "first_token"])
def test_a_server_that_keeps_nothing_is_unchecked(pair, part):
    _, plain = pair
    finding = run(part, servers((plain, plain)))
    assert not finding.wrong and any("resumed" in line for line in finding.unchecked)


def test_a_late_first_token_is_red(pair, monkeypatch):
    monkeypatch.setattr("experiments.soak.first_token.ROUNDS_MOST", 0)
    assert run("first_token", servers(pair)).word == "RED"


def test_what_is_told():
    told = show(Finding("repeats", 3, ["a"], ["b"], {"c": 1}))
    assert told.splitlines() == ["RED repeats: 3 replies compared", "  red a", "  unchecked b", "  c = 1"]


@pytest.mark.parametrize("words", [["0"], ["x"], ["512"], ["-3"]])
def test_lengths_that_do_not_fit_are_refused(words):
    with pytest.raises(UsageError, match="--lengths"):
        command.read_lengths(words, 512)


def test_a_server_that_does_not_start_is_told_of():
    with pytest.raises(SoakError, match="no-such-folder"):
        with both(["no-such-folder"], [], 60, [sys.executable, "-c", "import sys; sys.exit(sys.argv[1])"]):
            pytest.fail("there is no server")
