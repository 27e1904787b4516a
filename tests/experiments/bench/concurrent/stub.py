"""A server that streams made-up tokens, and plans and replies for tests without one."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from experiments.bench.concurrent.measure import Block, Measured
from experiments.bench.concurrent.plan import ARMS, Cell, Plan, cells, waves
from experiments.http_client import Answer, Client, Piece

PLAN = Plan(
    arms=ARMS,
    levels=(1, 2),
    workloads=("code", "edit"),
    samplings=("greedy",),
    alone=False,
    serial=False,
    requests=2,
    repeats=1,
    sets=1,
    max_tokens=8,
    warm_tokens=4,
    seed=1,
)


def plan(**changes) -> Plan:
    return replace(PLAN, **changes)


def answer(sha="s", tokens=8, seconds=8.0, **fields) -> Answer:
    """A reply of one token a piece, evenly over `seconds` behind the first, which comes after one."""
    pieces = tuple(Piece(1 + i * seconds / (tokens - 1), 1) for i in range(tokens))
    ids = tuple(range(tokens))
    plain = Answer("t" * tokens, "length", sha, ids, 0, 0, 0.0, 1.0, 1 + seconds, prompt_tokens=10, pieces=pieces)
    return replace(plain, **fields)


def block(chosen: Plan, half: int, arm: str, seconds: float, **fields) -> Block:
    """An arm's turn in which every reply takes so long; each request has a hash of its own."""

    def measured(cell: Cell) -> Measured:
        drafted = {"drafted": 4, "accepted": 2} if arm == "draft" and cell.level != "serial" else {}
        sha = lambda n: f"{cell.workload}{cell.sampling}{n}"  # noqa: E731
        return Measured(
            tuple(
                tuple(answer(sha(n), seconds=seconds, **drafted) for n in wave)
                for _ in range(chosen.repeats)
                for wave in waves(chosen, cell)
            )
        )

    return Block(half, arm, {cell: measured(cell) for cell in cells(chosen, arm)}, {}, **fields)


class Stub:
    """What a stub does. requests: bodies so far. lie, fail: whether one's reply gets a wrong hash, or status 500."""

    def __init__(self):
        self.requests: list[dict] = []
        self.drafts = True
        self.lanes = 4
        self.context = 1024
        self.lie: Callable[[dict], bool] = lambda body: False
        self.fail: Callable[[dict], bool] = lambda body: False

    def events(self, body: dict) -> Iterator[dict]:
        """Chunks of one token or, drafted, of two."""
        step = 2 if self.drafts and body.get("draft", True) else 1
        count = body["max_tokens"]
        for first in range(0, count, step):
            ids = list(range(first, min(first + step, count)))
            yield {"choices": [{"text": "x" * len(ids), "token_ids": ids}]}
        sha = f"{hash((body['prompt'], body['seed'], body['temperature'], count))}{'!' if self.lie(body) else ''}"
        yield {"choices": [{"text": "", "token_ids": [], "finish_reason": "length", "token_sha": sha}]}
        usage: dict = {"prompt_tokens": len(body["prompt"].split())}
        if step == 2:
            usage["completion_tokens_details"] = {
                "accepted_prediction_tokens": count // 2,
                "rejected_prediction_tokens": 1,
            }
        yield {"choices": [], "usage": usage}


@contextmanager
def stub_server() -> Iterator[tuple[Stub, Client]]:
    """A stub on a free port, and a client of it."""
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            if self.path == "/v1/models":
                self.give({"data": [{"id": "stub"}]})
            elif self.path == "/v1/server_info":
                info = {"config": {"lanes": stub.lanes}, "context": stub.context, "fingerprint": {"digest": "f"}}
                self.give(info | {"devices": ["none"]})
            else:
                self.give(b'# HELP x\nfnx:rounds_total{a="b"} 3.0\nfnx:compilations_total{a="b"} 0.0\n')

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/tokenize":
                return self.give({"count": len(body["prompt"].split())})
            stub.requests.append(body)
            if stub.fail(body):
                return self.give({"error": "it broke"}, 500)
            lines = [f"data: {json.dumps(event)}\n\n" for event in stub.events(body)]
            return self.give("".join([*lines, "data: [DONE]\n\n"]).encode())

        def give(self, what, status=200):
            data = what if isinstance(what, bytes) else json.dumps(what).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield stub, Client(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
