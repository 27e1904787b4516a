"""Two processes give the tokens of one, compile nothing after warm-up, and end when one of them does.

One pair serves the whole module; its last test kills it.
"""

import hashlib
import json
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import fnx_jax
from checkpoints.commands import DEMO
from experiments import faults
from experiments.faults import CASES, run_case
from experiments.server_pair import Pair, call
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.request import Request, SamplingParams
from tests.fnx_jax.serve.support import wait_for

CACHE = Path(__file__).parents[3] / ".cache" / "jax"
# The machine of the tests may be a busy one.
FLAGS = (
    f"--model={DEMO}",
    "--context=512",
    "--max-rows=64",
    "--rank-silence-seconds=60",
    "--no-self-test",
    f"--compilation_cache_dir={CACHE}",
)
START_S = 900.0
SAMPLINGS = {
    "greedy": dict(temperature=0.0),
    "seeded": dict(temperature=1.0, seed=2**40 + 1),
    "filtered": dict(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, seed=2),
    "reported": dict(temperature=1.2, seed=3, logprobs=3),
    "penalised": dict(temperature=0.8, seed=4, presence_penalty=1.0, repetition_penalty=1.2),
}
LENGTHS = dict(zip(SAMPLINGS, (5, 90, 37, 16, 130), strict=True))
TOKENS = 12


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(FLAGS) as started:
        started.wait_ready(START_S)
        yield started


def prompt(name: str) -> list[int]:
    rng = np.random.default_rng(LENGTHS[name])
    return [int(token) for token in rng.integers(10, 3900, LENGTHS[name])]


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[list[int], list[float]]]:
    """Tokens and log-probabilities of one process, each request by itself."""
    out, model = {}, fnx_jax.load(DEMO, lanes=4, context=512, max_rows=64)
    for name, fields in SAMPLINGS.items():
        neutral = dict(top_k=0, top_p=1.0, min_p=0.0)
        request = Request(name, tuple(prompt(name)), SamplingParams(max_tokens=TOKENS, **(neutral | fields)))
        emissions = Engine(model.steps).run([request])[name]
        tokens = [token for emission in emissions for token in emission.tokens]
        out[name] = tokens, [report.logprob for emission in emissions for report in emission.logprobs or ()]
    return out


def reply(pair: Pair, name: str) -> tuple[list[int], list[float], str]:
    """The same from the two processes, and the hash that the server made."""
    neutral = dict(top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True, return_token_ids=True, max_tokens=TOKENS)
    status, data = call(pair.url, "/v1/completions", {"prompt": prompt(name)} | neutral | SAMPLINGS[name])
    assert status == 200, data
    (choice,) = json.loads(data)["choices"]
    return choice["token_ids"], (choice["logprobs"] or {}).get("token_logprobs", []), choice["token_sha"]


def metric(pair: Pair, name: str) -> float:
    found = re.search(rf"^{name}\{{.*\}} (\S+)$", call(pair.url, "/metrics")[1].decode(), re.MULTILINE)
    assert found, name
    return float(found[1])


@pytest.mark.parametrize("streams", [1, 4])
def test_two_processes_give_the_tokens_of_one(streams, pair, alone):
    with ThreadPoolExecutor(streams) as pool:
        replies = dict(zip(SAMPLINGS, pool.map(lambda name: reply(pair, name), SAMPLINGS), strict=True))
    for name, (tokens, logprobs) in alone.items():
        sha = hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()[:12]
        assert replies[name] == (tokens, logprobs, sha), name
    assert len(alone["reported"][1]) == TOKENS


def test_traffic_compiles_nothing_on_either_rank(pair):
    reply(pair, "reported")
    signs = metric(pair, "fnx:rank_signs_total")
    # The other rank tells its count with its signs of life; the next one may have been on its way.
    wait_for(lambda: metric(pair, "fnx:rank_signs_total") >= signs + 2, 60)
    assert metric(pair, "fnx:compilations_total") == 0
    assert metric(pair, "fnx:rounds_total") > 0


def test_other_settings_on_one_rank_are_refused_on_both_before_anything_is_read():
    with Pair(FLAGS, (("--lanes=3",), ("--lanes=5",))) as started:
        codes = [started.wait(rank, 120) for rank in (0, 1)]
        logs = [started.log(rank) for rank in (0, 1)]
    assert codes == [2, 2], logs
    assert all("Disagreement: lanes: 3 on rank 0, 5 on rank 1" in log and "weights" not in log for log in logs)


def test_a_killed_rank_ends_replies_health_and_the_other_rank(pair, monkeypatch):
    monkeypatch.setattr(faults, "LIMIT_S", 60.0)
    (case,) = (case for case in CASES if case.signal == signal.SIGKILL and case.targets == (1,) and case.busy)
    assert run_case(case, pair).wrong == []
