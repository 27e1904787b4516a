"""Tokens depend on checkpoint, prompt, parameters and seed alone: streams in company, chunks, compilations, faults.

On the embedded demo as served: EXL3 weights, bfloat16 caches, every mechanism on.
"""

import itertools
import threading

import numpy as np
import pytest

from fnx_jax.compilations import CompilationCounter
from fnx_jax.engine.drafting.settings import DraftSettings
from fnx_jax.engine.drafts import policy_for
from fnx_jax.engine.fixed_depth import FixedDepth
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.request import Budget, Request, SamplingParams
from fnx_jax.lanes.warmup import warm_up

SAMPLINGS = {
    "greedy": dict(temperature=0.0),
    "seeded": dict(temperature=1.0, top_k=20, top_p=0.95),
    "unfiltered": dict(temperature=1.3),
    "penalised": dict(temperature=0.8, top_p=0.9, presence_penalty=1.0, repetition_penalty=1.2, logit_bias=((7, 3.0),)),
    "reported": dict(temperature=1.0, min_p=0.05, logprobs=3),
}


def prompt(seed: int, length: int) -> tuple[int, ...]:
    """Ordinary token ids."""
    return tuple(int(token) for token in np.random.default_rng(seed).integers(10, 3900, length))


def requests(count: int = 4, tokens: int = 12) -> list[Request]:
    """Streams of unlike lengths and samplings, with prompts that cross tiles, pages and the selection budget."""
    lengths = itertools.cycle((5, 90, 1, 37, 16, 130))
    kinds = itertools.cycle(SAMPLINGS.values())
    return [
        Request(f"r{i}", prompt(i, length), SamplingParams(seed=1000 + i, max_tokens=tokens + 5 * (i % 4), **kind))
        for i, length, kind in zip(range(count), lengths, kinds, strict=False)
    ]


def replies(engine: Engine, batch: list[Request]) -> dict[str, tuple]:
    """Tokens and log-probabilities of every reply."""
    out = {}
    for name, emissions in engine.run(batch).items():
        tokens = [token for emission in emissions for token in emission.tokens]
        reports = [report for emission in emissions for report in emission.logprobs or ()]
        assert emissions[-1].finish is not None and emissions[-1].finish.reason in ("stop", "length")
        out[name] = (tokens, reports)
    return out


@pytest.fixture(scope="module")
def alone(demo_model):
    """Every request run by itself."""
    return {k: v for request in requests(6) for k, v in replies(Engine(demo_model.steps), [request]).items()}


@pytest.mark.parametrize("rows", [dict(), dict(prefill_chunk=3, stall_rows=3), dict(prefill_chunk=17, stall_rows=5)])
def test_concurrent_streams_equal_solo(rows, demo_model, alone):
    engine = Engine(demo_model.steps, EngineConfig(**rows))
    assert replies(engine, requests(6)) == alone
    tiles = [tile for record in engine.records for tile in record.tiles]
    assert any(tile.shared for tile in tiles), "UNCHECKED: no tile held rows of two lanes"
    assert any(tile.mixed for tile in tiles), "UNCHECKED: no tile held prompt and decode rows"


@pytest.mark.parametrize("depth", [1, 4, 15])
def test_drafted_streams_equal_plain(depth, demo_model, alone):
    engine = Engine(demo_model.steps, EngineConfig(prefill_chunk=17, stall_rows=5), drafter=FixedDepth(depth))
    assert replies(engine, requests(6)) == alone
    status = engine.status()
    rejected = [drafted - accepted for drafted, accepted in zip(status.drafted, status.accepted, strict=True)]
    assert status.accepted[0] and rejected[0], "UNCHECKED: no draft was accepted, or none rejected"
    tiles = [tile for record in engine.records for tile in record.tiles]
    assert any(sum(lane.verify > 0 for lane in tile.lanes) > 1 for tile in tiles), "UNCHECKED: no lanes shared a tile"


def test_the_drafter_that_serves_changes_nothing(demo_model, alone):
    settings = DraftSettings(plain_guard=False)  # it shall draft whatever the clock says
    engine = Engine(demo_model.steps, drafter=policy_for(demo_model.steps, settings))
    assert replies(engine, requests(6)) == alone
    assert engine.status().draft_windows, "UNCHECKED: nothing was drafted"


def test_dictated_tokens_are_followed_by_what_follows_them_in_a_prompt(demo_model):
    closing = (300, 301, 302)
    bounded = Request(
        "x", prompt(4, 30), SamplingParams(seed=9, max_tokens=20, ignore_eos=True), budget=Budget(7, 301, closing)
    )
    (tokens, _) = replies(Engine(demo_model.steps), [bounded])["x"]
    assert tuple(tokens[7:10]) == closing
    rest = Request("y", (*bounded.prompt, *tokens[:10]), SamplingParams(seed=9, max_tokens=10, ignore_eos=True))
    assert replies(Engine(demo_model.steps), [rest])["y"][0] == tokens[10:]
    for depth in (1, 4):
        engine = Engine(demo_model.steps, drafter=FixedDepth(depth))
        assert replies(engine, [bounded])["x"][0] == tokens
        assert engine.status().draft_windows, "UNCHECKED: nothing was drafted"


def test_every_token_stands_in_one_round_record(demo_model):
    engine = Engine(demo_model.steps)
    found = replies(engine, requests(4, tokens=6))
    seen: dict[str, list[int]] = {name: [] for name in found}
    for record in engine.records:
        for name, tokens in record.committed:
            seen[name].extend(tokens)
    assert seen == {name: tokens for name, (tokens, _) in found.items()}


def test_a_seed_is_a_seed(demo_model):
    def reply(seed):
        request = Request("x", prompt(3, 20), SamplingParams(temperature=1.0, seed=seed, max_tokens=12))
        return replies(Engine(demo_model.steps), [request])["x"]

    assert reply(5) == reply(5)
    assert reply(5) != reply(6)
    assert reply(-1) == reply(2**64 - 1)


def test_prompt_logprobs_do_not_depend_on_chunks(demo_model):
    def report(chunk):
        sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2)
        engine = Engine(demo_model.steps, EngineConfig(prefill_chunk=chunk))
        return [
            e.prompt_logprobs for e in engine.run([Request("x", prompt(8, 37), sampling)])["x"] if e.prompt_logprobs
        ]

    (whole,) = report(512)
    assert whole[0] is None and len(whole) == 37
    assert [report(1), report(5)] == [[whole], [whole]]
    scores = demo_model.score(np.array([prompt(8, 37)]))
    assert scores[0, 1:].tolist() == [entry.logprob for entry in whole[1:]]


def test_traffic_compiles_nothing(demo_model):
    warm_up(demo_model.steps)
    rng, kinds = np.random.default_rng(0), list(SAMPLINGS.values())
    engine = Engine(demo_model.steps, EngineConfig(prefill_chunk=40), drafter=FixedDepth(3)).start()
    ends, all_ended = [], threading.Event()

    def sink(emission):
        if emission.finish:
            ends.append(emission.finish.reason)
        if len(ends) == 100:
            all_ended.set()

    counter = CompilationCounter()
    for i in range(100):
        extra = dict(prompt_logprobs=1) if i % 7 == 0 else {}
        sampling = SamplingParams(seed=i, max_tokens=int(rng.integers(1, 6)), **kinds[i % len(kinds)], **extra)
        request = Request(f"r{i}", prompt(i, int(rng.integers(1, 30))), sampling)
        engine.submit(request, sink)
        if i % 9 == 0:
            engine.cancel(request.id)
    assert all_ended.wait(900.0)
    engine.stop()
    counter.close()
    assert "error" not in ends and ends.count("abort") <= 12
    assert counter.count == 0
    assert engine.status().draft_windows


def test_the_counter_counts():
    import jax

    counter = CompilationCounter()
    jax.jit(lambda x: x * 3 + 41)(np.float32(2))
    counter.close()
    assert counter.count == 1
