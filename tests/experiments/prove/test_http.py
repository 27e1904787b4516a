"""The HTTP level against a server in this process: green where replies agree, and not where one does not."""

from dataclasses import replace

import pytest

from checkpoints.commands import UsageError
from experiments.prove import http
from experiments.prove.claims import Result
from experiments.prove.compare import Difference
from experiments.prove.http import prove_http
from experiments.prove.http_client import Answer, Client, HttpError, client_for
from experiments.prove.http_compare import HttpCell, Seen, difference, seen, tally, unexercised
from experiments.prove.report import remarks
from fnx_jax.engine.fake import Faults
from tests.fnx_jax.serve.support import running

ANSWER = Answer("ab", "length", "s", (1, 2), 0, 0, 0.0, 1.0, 2.0)


@pytest.fixture(scope="module")
def url():
    with running(faults=Faults(sleep_s=0.002)) as server:
        server.script.say(None)
        yield server.url


def test_a_server_whose_replies_agree_is_green(url, monkeypatch):
    monkeypatch.setattr(http, "SAMPLINGS", {"seeded": http.SAMPLINGS["seeded"], "greedy": http.SAMPLINGS["greedy"]})
    found = prove_http(url, None, long=False, seed=1, progress=lambda what: None, begin_s=0.0)
    assert found.green, remarks(found)
    assert len(set(found.hashes.values())) == 2
    assert found.facts["compared_by"] == "token_sha"
    assert {line.claim: line.equal for line in found.tallies if line.cells} == {"again": 2, "solo": 8, "stream": 6}


def test_a_reply_that_changes_in_company_is_red(url, monkeypatch):
    asked = Client.complete

    def complete(self, body):
        answer = asked(self, body)
        wrong = body.get("stream") and body["seed"] % 1000 == 2
        return replace(answer, token_ids=(*answer.token_ids[:-1], 5), token_sha="x") if wrong else answer

    monkeypatch.setattr(http, "SAMPLINGS", {"greedy": {"temperature": 0.0}})
    monkeypatch.setattr(Client, "complete", complete)
    found = prove_http(f"{url}/v1/", None, long=False, seed=1, progress=lambda what: None, begin_s=0.0)
    lines = {line.claim: line for line in found.tallies}
    assert not found.green
    assert lines["stream"].unequal == 3 and lines["again"].unequal == 0
    assert lines["stream"].first.startswith("request 2: token at position 23")


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, None),
        ({"token_ids": (1, 3)}, Difference("r", 1, "token")),
        ({"token_ids": None, "text": "ac"}, Difference("r", 1, "text")),
        ({"token_sha": "t"}, Difference("r", 2, "text")),
        ({"finish": "stop"}, Difference("r", 2, "finish")),
    ],
)
def test_how_replies_differ(changes, wanted):
    assert difference("r", ANSWER, replace(ANSWER, **changes)) == wanted


def test_kept_prompts_and_drafts_turn_their_claims_on():
    assert seen([ANSWER, ANSWER], [replace(ANSWER, cached=4), ANSWER]) == Seen(cached=4)
    assert seen([replace(ANSWER, accepted=1)], [replace(ANSWER, accepted=3)]) == Seen()
    lines = {line.claim: line for line in tally([Result(HttpCell(), evidence=Seen(accepted=2))])}
    assert (lines["plain"].equal, lines["plain"].unchecked, lines["fresh"].unchecked) == (1, 0, 1)


def test_replies_that_came_one_after_the_other_are_unchecked():
    later = replace(ANSWER, begin_s=0.5, first_s=2.5, end_s=3.0)
    assert unexercised(HttpCell(2, True), [ANSWER, later]) == ("replies did not overlap",)
    assert unexercised(HttpCell(2, True), [ANSWER, ANSWER]) == ()
    assert unexercised(HttpCell(), [replace(ANSWER, text="", token_ids=())]) == ("a reply was empty",)


def test_a_server_that_is_not_there_is_a_usage_error():
    with pytest.raises(UsageError, match="--url: http://127.0.0.1:9"):
        prove_http("http://127.0.0.1:9", None, long=False, seed=0, progress=lambda what: None, begin_s=0.0)


def test_a_refusal_says_why(url):
    with pytest.raises(HttpError, match="400: .*max_tokens"):
        client_for(url, "key").complete({"prompt": "a", "max_tokens": -1})
