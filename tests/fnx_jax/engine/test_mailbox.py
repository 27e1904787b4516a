"""The door between threads: what is taken, what is refused, and whose words are last."""

import pytest

from fnx_jax.engine.lane import Waiting
from fnx_jax.engine.mailbox import Mailbox
from fnx_jax.engine.request import Emission, EngineClosed, EngineError, Finish, QueueFull, Request

LAST = Emission("a", finish=Finish("length"))


def letter(name):
    return Waiting(Request(name, (1,)), 0.0)


def test_collect_takes_everything_once():
    mailbox = Mailbox(4)
    for name in "ab":
        mailbox.accept(letter(name), print)
    mailbox.cancel(["b", "unknown"])
    assert mailbox.pending and mailbox.arrivals == 2
    arrivals, cancels = mailbox.collect()
    assert ([waiting.request.id for waiting in arrivals], cancels) == (["a", "b"], {"b"})
    assert not mailbox.pending and mailbox.collect() == ([], set())
    assert mailbox.live() == ["a", "b"] and not mailbox.idle


def test_refused_request_is_not_taken():
    mailbox = Mailbox(1)
    mailbox.accept(letter("a"), print)
    for refused, error in (("a", EngineError), ("b", QueueFull)):
        with pytest.raises(error):
            mailbox.accept(letter(refused), print)
    mailbox.accept(letter("c"), print, bounded=False)
    mailbox.close("gone")
    with pytest.raises(EngineClosed, match="gone"):
        mailbox.accept(letter("d"), print, bounded=False)
    assert mailbox.live() == ["a", "c"] and mailbox.arrivals == 2


def test_cancellation_of_an_ended_request_does_not_reach_the_next_of_its_name():
    mailbox, seen = Mailbox(1), []
    mailbox.accept(letter("a"), seen.append)
    mailbox.collect()
    mailbox.cancel(["a"])
    mailbox.deliver(LAST)
    mailbox.accept(letter("a"), seen.append)
    assert mailbox.collect()[1] == set() and seen == [LAST]


def test_name_is_free_again_while_its_last_emission_is_delivered():
    mailbox, states = Mailbox(1), []

    def sink(emission):
        states.append(("a" in mailbox, mailbox.idle))
        mailbox.accept(letter("a"), print)

    mailbox.accept(letter("a"), sink)
    mailbox.deliver(LAST)
    assert states == [(False, False)] and "a" in mailbox


def test_interrupted_sink_does_not_leave_the_mailbox_busy():
    def sink(emission):
        raise KeyboardInterrupt

    mailbox = Mailbox(1)
    mailbox.accept(letter("a"), sink)
    with pytest.raises(KeyboardInterrupt):
        mailbox.deliver(LAST)
    assert mailbox.idle
