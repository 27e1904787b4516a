"""What the engine's tests share: an oracle that decodes one request in a plain loop, and collectors of emissions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fnx_jax.engine.fake import FakeSteps
from fnx_jax.engine.fake_model import fake_draw, fake_logits, fake_logprobs
from fnx_jax.engine.request import Budget, Emission, Finish, Request, SamplingParams, TokenLogprobs
from fnx_jax.engine.rounds import serve_rounds
from fnx_jax.engine.scheduler import Scheduler
from fnx_jax.engine.steps import Draw


@dataclass
class Reply:
    """All that one request got."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    finish: Finish | None = None
    emissions: list[Emission] = field(default_factory=list)

    @property
    def last(self) -> Finish:
        """Why it ended."""
        assert self.finish is not None, "the reply has no end"
        return self.finish

    @property
    def end(self) -> tuple:
        """Tokens and why they end, without timings."""
        return self.tokens, self.last.reason, self.last.stop_reason, self.logprobs, self.prompt_logprobs


def gather(emissions: Iterable[Emission]) -> dict[str, Reply]:
    """Joins emissions by request; nothing may follow a last one, and prompt log-probabilities come once."""
    replies: dict[str, Reply] = {}
    for emission in emissions:
        reply = replies.setdefault(emission.request_id, Reply())
        assert reply.finish is None, f"{emission.request_id} goes on after its end"
        assert emission.tokens or emission.finish
        reply.tokens += emission.tokens
        reply.logprobs += emission.logprobs or ()
        if emission.prompt_logprobs is not None:
            assert reply.prompt_logprobs is None
            reply.prompt_logprobs = emission.prompt_logprobs
        reply.finish = emission.finish
        reply.emissions.append(emission)
    return replies


def serve(steps: FakeSteps, scheduler: Scheduler, requests: Sequence[Request]) -> dict[str, Reply]:
    """Submits everything at once and serves it to the end."""
    for request in requests:
        scheduler.submit(request)
    replies = gather(serve_rounds(steps, scheduler))
    scheduler.verify()
    assert scheduler.pool.used == 0
    return replies


def plain(request: Request, context: int = 128, vocabulary: int = 64, script=None) -> tuple:
    """Decodes a request token by token from its whole history, with none of the engine's code; as Reply.end.

    Watchers are left out: a stop string is found in the test that has one.
    """
    s = request.sampling
    tokens, reply, logprobs = list(request.prompt), [], []
    reason, stop = "length", None
    dictated: list[int] = []
    while len(reply) < min(s.max_tokens, context - len(request.prompt)):
        budget = request.budget
        if budget is not None and len(reply) == budget.tokens and budget.close not in reply:
            dictated = list(budget.closing)
        logits_V = fake_logits(tokens, vocabulary, script(tokens) if script else None)
        drawn = fake_draw(logits_V, plain_draw(s, request.prompt, reply, vocabulary))
        token = dictated.pop(0) if dictated else drawn
        assert token is not None
        if s.logprobs is not None:
            logprobs.append(fake_logprobs(logits_V, token, s.logprobs))
        tokens.append(token)
        reply.append(token)
        if len(reply) <= s.min_tokens:  # such a token may be dictated, though it is not drawn
            continue
        if token in s.eos_token_ids and not s.ignore_eos:
            reason = "stop"
            break
        if token in s.stop_token_ids:
            reason, stop = "stop", token
            break
    return tuple(reply), reason, stop, tuple(logprobs), plain_prompt_logprobs(request, vocabulary, script)


def plain_draw(s: SamplingParams, prompt: Sequence[int], reply: Sequence[int], vocabulary: int) -> Draw:
    """The draw after `reply`, its arrays made from nothing but prompt and reply; always all of them."""
    bias_V = np.zeros(vocabulary, np.float32)
    for token, bias in s.logit_bias:
        bias_V[token] += bias
    if len(reply) < s.min_tokens:
        bias_V[list(s.stop_token_ids)] = -np.inf
        if not s.ignore_eos:
            bias_V[list(s.eos_token_ids)] = -np.inf
    counts_V = np.bincount(np.array(reply, np.int64), minlength=vocabulary).astype(np.int32)
    seen_V = counts_V > 0
    seen_V[list(prompt)] = True
    return Draw(
        row=0,
        position=len(prompt) + len(reply),
        seed=s.seed % 2**64,
        choice=s.choice,
        temperature=s.temperature,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        repetition_penalty=s.repetition_penalty,
        counts_V=counts_V,
        seen_V=seen_V,
        bias_V=bias_V,
    )


def plain_prompt_logprobs(request: Request, vocabulary: int, script=None) -> tuple | None:
    """The prompt's own log-probabilities, the first None."""
    top = request.sampling.prompt_logprobs
    if top is None:
        return None
    prompt = request.prompt
    heads = [list(prompt[:length]) for length in range(1, len(prompt))]
    logits = [fake_logits(head, vocabulary, script(head) if script else None) for head in heads]
    return (None, *(fake_logprobs(logits_V, prompt[i + 1], top) for i, logits_V in enumerate(logits)))


def random_request(rng: np.random.Generator, name: str, vocabulary: int = 64, context: int = 128) -> Request:
    """A request that uses a random part of what there is to use."""

    def chance(likely, value, default):
        return value if rng.random() < likely else default

    length = int(rng.integers(1, 60))
    sampling = SamplingParams(
        temperature=chance(0.5, float(rng.uniform(0.2, 1.5)), 0.0),
        presence_penalty=chance(0.2, float(rng.uniform(-1, 1)), 0.0),
        frequency_penalty=chance(0.2, float(rng.uniform(-1, 1)), 0.0),
        repetition_penalty=chance(0.2, float(rng.uniform(0.5, 2)), 1.0),
        logit_bias=chance(0.2, ((int(rng.integers(vocabulary)), 2.0), (3, -float("inf"))), ()),
        seed=int(rng.integers(2**62)) - 2**61,
        choice=int(rng.integers(3)),
        max_tokens=int(rng.integers(0, 25)) if rng.random() < 0.9 else context,
        min_tokens=chance(0.3, int(rng.integers(12)), 0),
        eos_token_ids=(1, 2),
        stop_token_ids=chance(0.3, (int(rng.integers(vocabulary)),), ()),
        ignore_eos=bool(rng.random() < 0.3),
        logprobs=chance(0.3, int(rng.integers(4)), None),
        prompt_logprobs=chance(0.3, int(rng.integers(4)), None),
        draft=bool(rng.random() < 0.8),
    )
    budget = chance(0.3, random_budget(rng, vocabulary), None) if sampling.logprobs is None else None
    return Request(name, tuple(int(t) for t in rng.integers(0, vocabulary, length)), sampling, budget=budget)


def random_budget(rng: np.random.Generator, vocabulary: int) -> Budget:
    """A bound that the reply's fewer than 25 tokens may reach, and a closing that may be wider than a tile."""
    closing = tuple(int(token) for token in rng.integers(3, vocabulary, int(rng.integers(1, 20))))
    return Budget(int(rng.integers(20)), closing[int(rng.integers(len(closing)))], closing)
