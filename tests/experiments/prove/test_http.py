"""The HTTP level against a server in this process: green where replies agree, and not where one does not."""

from dataclasses import replace
from email.message import Message
from io import BytesIO
from urllib.error import HTTPError

import pytest

from checkpoints.commands import UsageError
from experiments import http_client
from experiments.http_client import Answer, Client, HttpError, client_for
from experiments.prove import http
from experiments.prove.claims import Result
from experiments.prove.compare import Difference
from experiments.prove.http import compared_by, prove_http
from experiments.prove.http_compare import HttpCell, Seen, difference, seen, tally, unexercised
from experiments.prove.report import remarks
from tests.fnx_jax.serve.support import ScriptedEngine, running, wait_for

ANSWER = Answer("ab", "length", "s", (1, 2), 0, 0, 0.0, 1.0, 2.0)


class Together:
    """A gate of rounds that makes a group's replies overlap, however the machine is loaded.

    Rounds wait until the whole group is with the engine; late ones wait until every streamed reply has been seen to
    begin. size: of the group. streamed: whether its replies are.
    """

    LATE = 12
    """Rounds by which every reply has begun and none has ended."""

    def __init__(self, monkeypatch):
        self.new(1, False)
        submit, events, ask = ScriptedEngine.submit, http_client._events, http.ask

        def submitted(engine, request, sink):
            if self.submitted == self.size:
                self.new(self.size, self.streamed)
            submit(engine, request, sink)
            self.submitted += 1

        def seen(lines):
            for number, event in enumerate(events(lines)):
                yield event
                self.begun += number == 0

        def asked(client, bodies, cell):
            self.new(cell.streams, cell.streamed)
            return ask(client, bodies, cell)

        monkeypatch.setattr(ScriptedEngine, "submit", submitted)
        monkeypatch.setattr(http_client, "_events", seen)
        monkeypatch.setattr(http, "ask", asked)

    def new(self, size, streamed):
        self.size, self.streamed, self.submitted, self.begun, self.rounds = size, streamed, 0, 0, 0

    def wait(self):
        wait_for(lambda: self.submitted == self.size)
        self.rounds += 1
        if self.streamed and self.rounds > self.LATE:
            wait_for(lambda: self.begun == self.size)


@pytest.fixture(scope="module")
def server():
    with running() as started:
        started.script.say(None)
        yield started


@pytest.fixture
def url(server):
    return server.url


def test_a_server_whose_replies_agree_is_green(server, url, monkeypatch):
    monkeypatch.setattr(server.script, "gate", Together(monkeypatch))
    monkeypatch.setattr(http, "SAMPLINGS", {"seeded": http.SAMPLINGS["seeded"], "greedy": http.SAMPLINGS["greedy"]})
    found = prove_http(url, None, long=False, seed=1, progress=lambda what: None, begin_s=0.0)
    assert found.green, remarks(found)
    assert len(set(found.hashes.values())) == 2
    assert "replies are compared by token_sha" in remarks(found)
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


def refuse(monkeypatch, refused, status):
    """Requests of which `refused` holds get this status."""
    asked = Client.complete

    def complete(self, body):
        if refused(body):
            raise HttpError(f"/v1/completions: {status}: no", status)
        return asked(self, body)

    monkeypatch.setattr(Client, "complete", complete)


def prove_greedy(url, monkeypatch):
    monkeypatch.setattr(http, "SAMPLINGS", {"greedy": {"temperature": 0.0}})
    return prove_http(url, None, long=False, seed=1, progress=lambda what: None, begin_s=0.0)


def test_where_token_ids_are_refused_the_text_is_compared_and_the_remarks_say_so(url, monkeypatch):
    refuse(monkeypatch, lambda body: "return_token_ids" in body, 422)
    monkeypatch.setattr(http, "compared_by", lambda answers: compared_by([replace(a, token_sha=None) for a in answers]))
    found = prove_greedy(url, monkeypatch)
    assert "replies are compared by text" in remarks(found) and found.results[0].error is None


@pytest.mark.parametrize("status", [400, 500])
def test_a_server_that_refuses_for_another_reason_is_a_usage_error(status, url, monkeypatch):
    refuse(monkeypatch, lambda body: True, status)
    with pytest.raises(UsageError, match=f"--url: /v1/completions: {status}"):
        prove_greedy(url, monkeypatch)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
@pytest.mark.parametrize(
    "reply", [HTTPError("u", 400, "no", Message(), BytesIO(b"no")), b"<html>", TimeoutError("slow")]
)
def test_a_server_that_answers_badly_is_a_usage_error(path, reply, monkeypatch):
    def urlopen(request, timeout):
        if not request.full_url.endswith(path):
            return BytesIO(b'{"data": [{"id": "m"}]}')
        if isinstance(reply, HTTPError):
            raise reply
        return Broken(reply)

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    with pytest.raises(UsageError, match="--url: .*/v1/"):
        prove_greedy("http://x", monkeypatch)


class Broken(BytesIO):
    """A reply that holds these bytes, or fails while it is read."""

    def __init__(self, reply):
        super().__init__(b"" if isinstance(reply, Exception) else reply)
        self.error = reply if isinstance(reply, Exception) else None

    def read(self, *size):
        if self.error:
            raise self.error
        return super().read(*size)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [({}, "token_sha"), ({"token_sha": None}, "token ids and text"), ({"token_sha": None, "token_ids": None}, "text")],
)
def test_what_is_compared_is_what_every_reply_has(changes, wanted):
    assert compared_by([ANSWER, replace(ANSWER, **changes)]) == wanted
    assert compared_by([]) == "nothing"


def test_a_refusal_says_why(url):
    with pytest.raises(HttpError, match="400: .*max_tokens"):
        client_for(url, "key").complete({"prompt": "a", "max_tokens": -1})
