"""Host side: the named traces, and how far a policy may fall short on them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.draft_policy.hindsight import fixed_ms
from experiments.draft_policy.machine import Clock, Described, Noise
from experiments.draft_policy.simulate import Result, Workload, make_trace, simulate
from experiments.draft_policy.text import DEPTH, Text, edited, forms
from fnx_jax.engine.drafting.policy import DraftPolicy
from fnx_jax.engine.drafting.settings import DraftSettings

PLAIN_LEAST, BEST_LEAST = 0.98, 0.95
"""Of the rate of plain rounds, everywhere; of the best fixed depth in hindsight, where a text stays as it is."""

RESIDENT = Described(base_ms=6.0, row_ms=0.15, tile_ms=1.0, head_base_ms=0.4, head_step_ms=0.5)
SMALL = Described(base_ms=2.0, row_ms=0.6, head_base_ms=0.5, head_step_ms=0.4)
OFFLOADED = Described(base_ms=20.0, row_ms=0.2, expert_ms=3.0, head_base_ms=1.0, head_step_ms=2.0)

CODE = Text((0.92, 0.9, 0.88, 0.85))
CHAT = Text((0.5, 0.45, 0.4))
PROSE = Text((0.6, 0.5, 0.45))
NONE = Text((0.0,), boast=0.5)
SWITCHING = Text((0.9, 0.85), other=(0.1,), period=200)


@dataclass(frozen=True)
class Scenario:
    """A workload under a name. offloaded: its experts are, so that the rates of rounds are compared too.

    pooled: the best depth is that of all seeds together. Where drafts pay well a trace has few rounds and many depths
    are about as good: the best one of a single trace owes its place to luck, and more of it than the bound leaves.
    plain_least: the bound beside plain rounds.
    """

    name: str
    workload: Workload
    offloaded: bool = False
    pooled: bool = False
    plain_least: float = PLAIN_LEAST


SCENARIOS = (
    Scenario("chat, 2 streams", Workload(2, CHAT, SMALL)),
    Scenario("chat, 4 streams", Workload(4, CHAT, SMALL)),
    Scenario("chat, 2 streams, offloaded", Workload(2, CHAT, OFFLOADED), True),
    Scenario("chat, 4 streams, offloaded", Workload(4, CHAT, OFFLOADED), True),
    Scenario("chat, 1 stream, resident", Workload(1, CHAT, RESIDENT), pooled=True),
    Scenario("chat, 4 streams, resident", Workload(4, CHAT, RESIDENT), pooled=True),
    Scenario("prose, 2 streams", Workload(2, PROSE, SMALL)),
    Scenario("prose, 2 streams, offloaded", Workload(2, PROSE, OFFLOADED), True),
    Scenario("prose, 2 streams, resident", Workload(2, PROSE, RESIDENT), pooled=True),
    Scenario("code, 1 stream, offloaded", Workload(1, CODE, OFFLOADED), True),
    Scenario("code, 4 streams, offloaded", Workload(4, CODE, OFFLOADED), True),
    Scenario("code, 1 stream, resident", Workload(1, CODE, RESIDENT), pooled=True),
    Scenario("code, 4 streams, resident", Workload(4, CODE, RESIDENT), pooled=True),
    Scenario("code, 8 streams, small", Workload(8, CODE, SMALL), pooled=True),
    Scenario("no acceptance, 1 stream", Workload(1, NONE, SMALL)),
    Scenario("no acceptance, 4 streams", Workload(4, NONE, SMALL)),
    Scenario("no acceptance, offloaded", Workload(2, NONE, OFFLOADED), True),
    Scenario("64-token chats", Workload(1, CHAT, SMALL, reply=64)),
    Scenario("64-token chats, 4 streams", Workload(4, CHAT, SMALL, reply=64)),
    Scenario("64-token replies, none lands", Workload(2, NONE, SMALL, reply=64)),
    Scenario("64-token codes, resident", Workload(1, CODE, RESIDENT, reply=64), pooled=True),
    Scenario("switching, 1 stream", Workload(1, SWITCHING, SMALL)),
    Scenario("switching, 4 streams", Workload(4, SWITCHING, SMALL)),
    Scenario("switching, 2 streams, offloaded", Workload(2, SWITCHING, OFFLOADED), True),
    Scenario("edits, 1 stream", Workload(1, Text((0.5, 0.4), words=edited), RESIDENT)),
    Scenario("forms, 2 streams, offloaded", Workload(2, Text((0.0,), words=forms), OFFLOADED), True),
)


@dataclass(frozen=True)
class Verdict:
    """What a policy made of one trace. fixed_ms: a token, by fixed depth, 0 being plain."""

    scenario: Scenario
    result: Result
    fixed_ms: tuple[float, ...]

    @property
    def own_ms(self) -> float:
        """Of a token."""
        return self.result.ms / self.result.tokens

    @property
    def of_plain(self) -> float:
        """The policy's rate beside that of plain rounds."""
        return self.fixed_ms[0] / self.own_ms

    @property
    def best(self) -> int:
        """The best fixed depth in hindsight."""
        return self.fixed_ms.index(min(self.fixed_ms))

    @property
    def of_best(self) -> float:
        """The policy's rate beside that of the best fixed depth."""
        return min(self.fixed_ms) / self.own_ms

    @property
    def holds(self) -> bool:
        """Whether the policy is within the bounds of a single trace."""
        free = self.scenario.pooled or not self.scenario.workload.text.stationary
        return self.of_plain >= self.scenario.plain_least and (free or self.of_best >= BEST_LEAST)


def of_pooled_best(verdicts: Sequence[Verdict]) -> float:
    """The policy's rate over all seeds of a trace beside that of the fixed depth that is best over all of them."""
    fixed = [sum(ms) for ms in zip(*(verdict.fixed_ms for verdict in verdicts), strict=True)]
    return min(fixed) / sum(verdict.own_ms for verdict in verdicts)


def hold(verdicts: Sequence[Verdict]) -> bool:
    """Whether the policy is within its bounds on all seeds of a trace."""
    within = not verdicts[0].scenario.pooled or of_pooled_best(verdicts) >= BEST_LEAST
    return within and all(verdict.holds for verdict in verdicts)


def judge(
    scenario: Scenario, seed: int, tokens: int, settings: DraftSettings | None = None, noise: Noise | None = None
) -> Verdict:
    """Runs the policy, which knows nothing yet, and every fixed depth over one trace."""
    policy = DraftPolicy(settings or DraftSettings(rate_guard=scenario.offloaded), DEPTH)
    trace = make_trace(scenario.workload, seed, tokens)
    clock = Clock(noise or Noise(), np.random.default_rng((seed, 1)))
    result = simulate(trace, policy, clock, policy.confidence)
    return Verdict(scenario, result, tuple(fixed_ms(trace, depth) for depth in range(DEPTH + 1)))
