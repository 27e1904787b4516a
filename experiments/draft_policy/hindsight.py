"""Host side: what a trace takes at one fixed depth, plain rounds among them. Agrees with simulate.py, and is quick."""

from experiments.draft_policy.machine import ROW_TILE
from experiments.draft_policy.simulate import Trace


def fixed_ms(trace: Trace, depth: int) -> float:
    """True milliseconds a token where every lane drafts to `depth` in every round; 0 is plain."""
    machine, lanes = trace.workload.machine, trace.workload.streams
    orders = list(range(lanes))
    places, started = [1] * lanes, lanes
    tokens, ms = 0, 0.0
    while tokens < trace.tokens:
        used, deepest = 0, 0
        for lane in range(lanes):
            reply = trace.replies[orders[lane]]
            room = len(reply.tokens) - places[lane]
            drafts = min(depth, room - 1)
            deepest = max(deepest, drafts)
            tested = min(drafts, ROW_TILE - used % ROW_TILE - 1)
            used += 1 + tested
            committed = 1 + min(reply.runs[places[lane]], tested)
            tokens += committed
            places[lane] += committed
            if places[lane] == len(reply.tokens):
                orders[lane], places[lane] = started, 1
                started += 1
        ms += machine.round_ms(lanes, used) + (machine.head_ms(lanes, deepest) if deepest else 0.0)
    return ms / tokens
