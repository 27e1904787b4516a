"""A follower makes rank 0's calls in rank 0's order, and notices when rank 0 is gone, as rank 0 notices the other."""

import contextlib
import socket
import struct
from dataclasses import replace

import numpy as np
import pytest

from fnx_jax.engine.fake import FakeSteps, Faults
from fnx_jax.engine.fixed_depth import FixedDepth
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.request import Request, SamplingParams
from fnx_jax.engine.steps import DraftPlan
from fnx_jax.ranks.channel import Channel
from fnx_jax.ranks.errors import RankLost
from fnx_jax.ranks.follower import follow
from fnx_jax.ranks.handshake import compare, greet
from fnx_jax.ranks.messages import SMALL, Commit, Facts, Left, Ready, Stop, most_bytes
from fnx_jax.ranks.steps import LeaderSteps
from tests.fnx_jax.ranks.support import FACTS, Losses, RecordedSteps, Thread, group, let_in, pair
from tests.fnx_jax.ranks.test_messages import same
from tests.fnx_jax.serve.support import wait_for

REQUESTS = [
    Request("greedy", (1, 2, 3), SamplingParams(temperature=0.0, max_tokens=6)),
    Request("seeded", tuple(range(30)), SamplingParams(seed=2**63 + 5, max_tokens=9, logprobs=2, prompt_logprobs=1)),
    Request("penalised", (7, 7), SamplingParams(seed=3, max_tokens=5, presence_penalty=1.0, logit_bias=((5, -2.0),))),
]


def said(replies: dict) -> dict:
    """Replies without their timing."""
    return {name: [(e.tokens, e.logprobs, e.prompt_logprobs) for e in reply] for name, reply in replies.items()}


def follower(link, steps) -> Thread:
    """A thread that makes rank 0's calls on `steps`."""

    def other() -> None:
        link.allow(most_bytes(steps))
        follow(link, steps, 1.0)

    return Thread(other)


def test_both_ranks_run_the_same_rounds_and_end_together():
    mine, theirs = RecordedSteps(draft_depth=5), RecordedSteps(draft_depth=5)
    leader, link, lost_by_zero, lost_by_one = pair(group())
    following = follower(link, theirs)
    leader.wait_ready()
    steps = LeaderSteps(mine, leader)
    replies = Engine(steps, drafter=FixedDepth(1)).run(REQUESTS)
    steps.commit(np.arange(4, dtype=np.int32))
    leader.end()
    following.result()
    alone = Engine(RecordedSteps(draft_depth=5), drafter=FixedDepth(1))
    assert said(replies) == said(alone.run(REQUESTS))
    assert len(mine.plans) > 5 and any(isinstance(plan, DraftPlan) for plan in mine.plans)
    assert same(tuple(mine.plans), tuple(theirs.plans))
    assert same(tuple(mine.commits), tuple(theirs.commits)) and len(theirs.commits) == 1
    assert not lost_by_zero.told and not lost_by_one.told


def test_drafts_that_fail_on_the_other_rank_end_nothing(caplog):
    mine, theirs = RecordedSteps(draft_depth=5), FakeSteps(draft_depth=5, faults=Faults(fail_drafts=frozenset({0})))
    leader, link, lost_by_zero, _ = pair(group())
    following = follower(link, theirs)
    leader.wait_ready()
    replies = Engine(LeaderSteps(mine, leader), drafter=FixedDepth(1)).run(REQUESTS[:1])
    leader.end()
    following.result()
    assert said(replies) == said(Engine(RecordedSteps(draft_depth=5), drafter=FixedDepth(1)).run(REQUESTS[:1]))
    assert theirs.draft_calls > 1 and not lost_by_zero.told
    assert any("drafts failed here" in record.getMessage() for record in caplog.records)


def test_both_ranks_keep_and_restore_the_same_states():
    mine, theirs = RecordedSteps(slots=3), RecordedSteps(slots=3)
    leader, link, *_ = pair(group())
    following = follower(link, theirs)
    leader.wait_ready()
    engine = Engine(LeaderSteps(mine, leader), EngineConfig(prompt_cache_min_tokens=1))
    request = Request("a", tuple(range(20)), SamplingParams(temperature=0.0, max_tokens=3))
    replies = [said(engine.run([request])) for _ in range(2)]
    leader.end()
    following.result()
    assert replies[0] == replies[1] and engine.status().cache.resumed == 1
    assert {what for what, *_ in mine.reused} == {"keep", "restore", "copy"}
    assert mine.reused == theirs.reused


@pytest.mark.parametrize(
    ("faults", "cached"),
    [
        (Faults(fail_keeps=frozenset({0})), [0, 0, 19]),
        (Faults(fail_restores=frozenset({0})), [0, 0, 19]),
        (Faults(fail_copies=frozenset({0})), [0, 0, 19]),  # of the page that is kept
        (Faults(fail_copies=frozenset({1})), [0, 0, 19]),  # of the page that a lane gets
    ],
)
def test_a_state_that_the_other_rank_lost_is_lost_to_both_and_no_more(faults, cached, caplog):
    """The other rank's device would raise PlanError, and so leave, if it were made to go on from what it has not."""
    mine, theirs = RecordedSteps(slots=3), FakeSteps(slots=3, faults=faults)
    leader, link, lost_by_zero, _ = pair(group())
    following = follower(link, theirs)
    leader.wait_ready()
    engine = Engine(LeaderSteps(mine, leader), EngineConfig(prompt_cache_min_tokens=9))
    request = Request("a", tuple(range(20)), SamplingParams(temperature=0.0, max_tokens=3))
    replies = [engine.run([request]) for _ in cached]
    leader.end()
    following.result()
    assert [reply["a"][-1].cached_tokens for reply in replies] == cached
    assert said(replies[0]) == said(replies[1]) == said(replies[2])
    assert engine.failed is None and not lost_by_zero.told
    assert engine.status().cache.failed == 1 and "here" in caplog.text


def test_a_follower_may_ask_rank_0_to_stop():
    asked = Losses()
    leader, link, *_ = pair(group(), on_stop=lambda: asked("stop"))
    link.send(Stop())
    assert asked.wait() == "stop"
    leader.end()
    link.close()


def test_compilations_are_told():
    leader, link, *_ = pair(group())
    link._beat = lambda: 7  # the count of a rank that compiles
    signs = leader.signs
    wait_for(lambda: leader.signs >= signs + 2)  # the next one may have been on its way
    assert leader.compilations == 7
    leader.end()
    link.close()


def test_a_follower_that_vanishes_is_lost_at_once_and_no_round_is_sent_to_it():
    leader, link, lost_by_zero, _ = pair(group())
    link._channel.close()
    assert lost_by_zero.wait().startswith("rank 1 is lost: ")
    with pytest.raises(RankLost, match="rank 1 is lost"):
        LeaderSteps(RecordedSteps(), leader).commit(np.zeros(4, np.int32))


def test_rank_0_that_vanishes_is_lost_at_once():
    leader, link, _, lost_by_one = pair(group())
    following = Thread(lambda: follow(link, RecordedSteps(), 1.0))
    leader._links[1]._channel.close()
    assert lost_by_one.wait().startswith("rank 0 is lost: ")
    with pytest.raises(RankLost):
        following.result()


def test_a_follower_that_gives_up_says_why():
    leader, link, lost_by_zero, _ = pair(group())
    link.send(Left("its disk is gone"))
    assert lost_by_zero.wait() == "rank 1 is lost: it left: its disk is gone"
    link.close()


def silent_follower(zero) -> Channel:
    """A rank that has joined and then does nothing at all, as a stopped process."""
    while True:
        try:
            channel = Channel(socket.create_connection((zero.host, zero.port)), 20)
            break
        except ConnectionRefusedError:
            pass
    greet(channel, replace(zero, rank=1))
    compare(channel, FACTS, 1, 0)
    return channel


def test_a_silent_rank_is_lost_though_its_connection_stands():
    zero, lost = group(), Losses()
    other = Thread(lambda: silent_follower(zero))
    let_in(zero, lost)
    channel = other.result()
    assert lost.wait() == "rank 1 is lost: no sign of life in time"
    channel.close()


def test_a_start_may_be_silent_for_longer_than_a_server():
    zero, lost = group(silence_s=5, start_silence_s=60), Losses()
    other = Thread(lambda: silent_follower(zero))
    leader = let_in(zero, lost)
    channel = other.result()
    assert leader._links[1]._channel.silence_s == 60
    leader._group = replace(zero, silence_s=0.3)  # less than a greeting may take
    channel.send(Ready())
    leader.wait_ready()
    assert lost.wait() == "rank 1 is lost: no sign of life in time"
    channel.close()


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (struct.pack(">I", SMALL + 1), f"a record of {SMALL + 1} bytes"),
        (struct.pack(">I", 3) + b"abc", "a message that is none"),
    ],
)
def test_a_record_that_is_too_long_or_none_loses_the_rank(data, word):
    zero, lost = group(), Losses()
    other = Thread(lambda: silent_follower(zero))
    leader = let_in(zero, lost)
    channel = other.result()
    channel.write(data)
    assert word in lost.wait()
    with pytest.raises(RankLost):
        leader.wait_ready()
    channel.close()


def test_a_follower_refuses_calls_that_are_none():
    leader, link, *_ = pair(group())
    leader.send(Facts({}))
    with pytest.raises(RankLost, match="sent a Facts"):
        follow(link, RecordedSteps(), 1.0)
    leader.end()
    link.close()


def test_a_long_round_is_taken_only_after_it_was_allowed():
    leader, link, _, lost_by_one = pair(group())
    with contextlib.suppress(RankLost):  # the other may hang up before the whole record is sent
        leader.send(Commit(np.zeros(SMALL // 4, np.int32)))
    assert "bytes, at most" in lost_by_one.wait()
