"""What is kept of a streamed reply."""

import pytest

from experiments.http_client import HttpError
from tests.experiments.bench.concurrent.stub import stub_server

BODY = {"prompt": "a b c", "seed": 1, "temperature": 0.0, "max_tokens": 5, "stream": True}


def test_a_stream_tells_its_pieces_in_order_and_what_was_drafted():
    with stub_server() as (_, client):
        answer = client.complete(BODY)
    assert [piece.tokens for piece in answer.pieces] == [2, 2, 1]
    times = [answer.begin_s, *(piece.at_s for piece in answer.pieces), answer.end_s]
    assert times == sorted(times) and answer.first_s >= answer.begin_s
    assert (answer.prompt_tokens, answer.accepted, answer.drafted) == (3, 2, 3)
    assert answer.token_ids == (0, 1, 2, 3, 4) and answer.finish == "length"


def test_a_path_is_read_and_a_refusal_says_why():
    with stub_server() as (stub, client):
        assert b"fnx:rounds_total" in client.read("/metrics")
        stub.fail = lambda body: True
        with pytest.raises(HttpError, match="/v1/completions: 500: .*it broke"):
            client.complete(BODY)
